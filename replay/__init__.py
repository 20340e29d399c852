"""timscope.replay"""
