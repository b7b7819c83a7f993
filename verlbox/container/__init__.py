"""Containers: the image of each stack, and the launcher that runs a recipe in one."""
