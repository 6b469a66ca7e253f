"""The lab's commands and the inventory that they write."""
