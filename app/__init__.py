"""timscope.app"""
