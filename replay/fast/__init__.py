"""The exact engine on a GPU: cuBLAS where it is proved bit-equal to a sequential sum, Triton for all the rest.

Everything here needs CUDA and triton; nothing outside this folder imports it before a GPU was asked for.
"""
