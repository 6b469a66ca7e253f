"""Operations: pure functions from facts and parameters to the changes still needed. They run nothing.

A playbook names one as MODULE.FUNCTION. Its first parameter is `facts`; the others are keyword parameters, whose
annotations say what a playbook may give.
"""
