"""Rounds of pairs of GPUs that share no GPU, the kind of each pair, and the choice of the pairs to measure alone."""

SLOW = 0.8  # a pair slower than this share of the fastest pair of its kind in the rounds is measured alone


def tournament(gpus):
    """Rounds of unordered pairs in which every two GPUs meet once and no GPU is in two pairs of a round.

    The circle method: the first GPU stays, the others move one place after each round. An even number of GPUs needs one
    round fewer than GPUs; with an odd number one GPU has no partner in each round.
    """
    places = sorted(gpus)
    places += [None] * (len(places) % 2)
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        met = [(places[at], places[-1 - at]) for at in range(half)]
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def rounds_of(pairs):
    """The given ordered pairs in rounds: [[(a, b), (b, a), ...], ...]. Only the directions of one pair share a GPU."""
    wanted, gpus = set(pairs), {gpu for pair in pairs for gpu in pair}
    rounds = []
    for met in tournament(gpus):
        made = [pair for a, b in met for pair in ((a, b), (b, a)) if pair in wanted]
        if made:
            rounds.append(made)
    return rounds


def is_alone(pairs):
    """Whether a round has only one pair, so that nothing else is transferred at the same time."""
    return len({frozenset(pair) for pair in pairs}) < 2


def phases_of(parts):
    """Divides parts (identifier, a, b) of a round into phases in which every GPU is used once."""
    phases = []
    for part in parts:
        free = [phase for phase in phases if not {part[1], part[2]} & {gpu for other in phase for gpu in other[1:]}]
        if free:
            free[0].append(part)
        else:
            phases.append([part])
    return phases


def link_of(nvlinks, switched, distance):
    """The kind of the link between two GPUs as `nvidia-smi topo -m` writes it: NV2, else PIX, PXB, PHB, NODE or SYS.

    nvlinks: those from one GPU to the other. switched: those of each of the two GPUs to NVSwitches.
    """
    number = nvlinks or min(switched)
    return "NV%d" % number if number else distance


def to_measure(kind_of, speeds):
    """The ordered pairs to measure alone, in order, with the reason of each: "kind", "outlier", or "no speed" of its
    round.

    kind_of: {pair: kind}. speeds: {pair: GB/s in its round, None if it was not measured} of the pairs with correct
    data. Of each kind the first two GPUs without an outlier are measured, in both directions, and every outlier.
    """
    most = {}
    for pair, speed in speeds.items():
        most[kind_of[pair]] = max(most.get(kind_of[pair], 0), speed or 0)
    slow = {pair for pair, speed in speeds.items() if not speed or speed < SLOW * most[kind_of[pair]]}
    chosen = {}
    for pair in speeds:
        both = {pair, pair[::-1]} & set(speeds)
        if kind_of[pair] not in chosen and not both & slow:
            chosen[kind_of[pair]] = both
    for pair in speeds:  # a kind in which every two GPUs have an outlier in one direction
        if kind_of[pair] not in chosen and pair not in slow:
            chosen[kind_of[pair]] = {pair, pair[::-1]} & set(speeds)
    of_kind = {pair for pairs in chosen.values() for pair in pairs}
    reasons = {pair: "outlier" if pair in slow else "kind" for pair in speeds if pair in slow | of_kind}
    return {pair: reason if speeds[pair] else "no speed" for pair, reason in reasons.items()}
