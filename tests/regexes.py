"""Every regular expression of `src/lamina`, and texts that make a backtracking one slow.

The patterns are found in the source (AST) and evaluated in their modules; nothing is listed by hand but what is built
from local variables. Attack texts come from the pattern itself: from its positions (Glushkov's automaton) follow loops
that can read the same text in two ways, and each gives a text to pump. What counts is the measured CPU time, in a
process that is killed when a pattern hangs.
"""

import ast
import importlib
import itertools
import os
import re
import re._constants as sre  # pyright: ignore[reportMissingModuleSource, reportMissingImports] -- no stubs
import re._parser as sre_parser  # pyright: ignore[reportMissingModuleSource, reportMissingImports] -- no stubs
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "lamina"
FUNCTIONS = ("compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
FLAGS_AT = {"compile": 1, "match": 2, "fullmatch": 2, "search": 2, "findall": 2, "finditer": 2, "split": 3, "sub": 4}
ANCHORED = {"match", "fullmatch"}
LOOP = 16
"""A repeat that goes this far counts as one without end."""


@dataclass(frozen=True)
class Found:
    """A pattern, where it stands, and whether it is looked for at every position of a text."""

    where: str
    pattern: str | bytes
    flags: int
    anywhere: bool
    wholly: bool = False
    """Only as `fullmatch`."""


# The inventory


def inventory(
    built: Mapping[tuple[str, str], Sequence[str]], skipped: Iterable[str] = (), source: Path = SOURCE
) -> list[Found]:
    """All patterns below `source`. `built` has examples, by file and expression, of those made from local variables."""
    trees = {
        path.relative_to(source).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(source.rglob("*.py"))
    }
    each = {name: methods_by_name(tree) for name, tree in trees.items()}
    found: list[Found] = []
    for name, tree in trees.items():
        if name in skipped:
            continue
        calls = [(call, function) for call in ast.walk(tree) if (function := function_of(call))]
        assigned = names_of_calls(tree) if calls else {}
        for call, function in calls:
            assert isinstance(call, ast.Call)
            called = assigned.get(id(call), "")
            others = [name] if called.startswith("_") else each
            uses = set[str]().union(*(each[other].get(called, set()) for other in others))
            uses = uses if function == "compile" else {function}
            anywhere, wholly = not uses or not uses <= ANCHORED, uses == {"fullmatch"}
            where = f"{name}:{call.lineno}"
            for pattern, flags in values_of(name, call, function, built):
                found.append(Found(where, pattern, flags, anywhere, wholly))
    return found


def names_of_calls(tree: ast.AST) -> dict[int, str]:
    """The name that each call inside an assignment is found under: `A = re.compile(…)`, `B = ((re.compile(…), f),)`."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found |= {id(inner): target.id for inner in ast.walk(node.value)}
    return found


def function_of(node: ast.AST) -> str:
    """Which function of `re` a call is of."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr if node.func.value.id == "re" and node.func.attr in FUNCTIONS else ""
    return ""


def methods_by_name(tree: ast.AST) -> dict[str, set[str]]:
    """Which methods are called on each name. A loop over a table calls them on the table; what is handed on otherwise
    may be used in any way."""
    nodes = list(ast.walk(tree))
    found: dict[str, set[str]] = {}
    known: set[int] = set()
    called: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            inner = node.value
            name = inner.id if isinstance(inner, ast.Name) else inner.attr
            called.setdefault(name, set()).add(node.attr)
            known.add(id(inner))
    for loop in nodes:
        if isinstance(loop, ast.For | ast.comprehension) and isinstance(loop.iter, ast.Name):
            targets = {inner.id for inner in ast.walk(loop.target) if isinstance(inner, ast.Name)}
            inside = [inner for part in loop.body for inner in ast.walk(part)] if isinstance(loop, ast.For) else nodes
            methods = {
                node.attr
                for node in inside
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in targets
            } & set(FUNCTIONS)
            found.setdefault(loop.iter.id, set()).update(methods or {"handed on"})
            known.add(id(loop.iter))
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in known:
            found.setdefault(node.id, set()).add("handed on")
    return {name: found.get(name, set()) | called.get(name, set()) for name in {*found, *called}}


def values_of(
    name: str, call: ast.Call, function: str, built: Mapping[tuple[str, str], Sequence[str]]
) -> Iterator[tuple[str | bytes, int]]:
    """The pattern of a call, evaluated in its module, or the examples that are given for it."""
    place = FLAGS_AT.get(function, 1)
    given = call.args[place] if len(call.args) > place else None
    given = next((word.value for word in call.keywords if word.arg == "flags"), given)
    flags = int(evaluate(name, given)) if given is not None else 0
    try:
        value = evaluate(name, call.args[0])
    except NameError:
        text = ast.unparse(call.args[0])
        examples = built.get((name, text))
        if examples is None:
            raise AssertionError(
                f"{name}:{call.lineno} builds a pattern from local variables: {text}. "
                "Give examples of it in `built`, or compile it where it can be found."
            ) from None
        for example in examples:
            yield example, flags
        return
    yield (value.pattern, value.flags) if isinstance(value, re.Pattern) else (value, flags)


def evaluate(name: str, node: ast.expr) -> Any:
    """The value of an expression of a file, with the names of its module where it needs them."""
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    space: dict[str, Any] = {"re": re}
    if names - {"re"}:  # not for plain text: some modules take long to import
        dotted = "lamina." + name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        space = vars(importlib.import_module(dotted))
    return eval(compile(ast.Expression(node), name, "eval"), space)


# The positions of a pattern


class Positions:
    """Glushkov's automaton of a pattern: the characters that it reads, and which may follow which, in how many ways.
    Assertions read nothing; a back reference reads what it may."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        tree = sre_parser.parse(pattern, flags)
        self.flags: int = tree.state.flags | flags
        self.reads: list[frozenset[str]] = []
        self.follow: list[Counter[int]] = []
        self.alphabet = alphabet_of(tree, self.flags)
        self.first = self.walk(tree, self.flags)[1]

    def walk(self, nodes: Iterable[Any], flags: int) -> tuple[bool, Counter[int], Counter[int]]:
        """Nullable, first and last of a sequence."""
        nullable, first, last = True, Counter[int](), Counter[int]()
        for op, value in nodes:
            empty, begins, ends = self.node(op, value, flags)
            for place in last:
                self.follow[place].update(begins)
            if nullable:
                first.update(begins)
            last = last + ends if empty else ends
            nullable = nullable and empty
        return nullable, first, last

    def node(self, op: Any, value: Any, flags: int) -> tuple[bool, Counter[int], Counter[int]]:
        if op in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY, sre.RANGE, sre.CATEGORY):
            self.reads.append(frozenset(c for c in self.alphabet if reads(op, value, c, flags)))
            self.follow.append(Counter())
            one = Counter({len(self.reads) - 1: 1})
            return False, one, one.copy()
        if op is sre.SUBPATTERN:
            _, more, less, inner = value
            return self.walk(inner, (flags | more) & ~less)
        if op is sre.ATOMIC_GROUP:
            return self.walk(value, flags)
        if op is sre.BRANCH:
            return self.either([self.walk(branch, flags) for branch in value[1]])
        if op is sre.GROUPREF_EXISTS:
            return self.either([self.walk(branch or [], flags) for branch in value[1:]])
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, inner = value
            return self.repeat(least, most, inner, flags)
        if op in (sre.ASSERT, sre.ASSERT_NOT):
            _, first, _ = self.walk(value[1], flags)
            return True, first, Counter()
        return True, Counter(), Counter()

    def either(self, parts: Sequence[tuple[bool, Counter[int], Counter[int]]]) -> Any:
        first, last = Counter[int](), Counter[int]()
        for _, begins, ends in parts:
            first.update(begins)
            last.update(ends)
        return any(part[0] for part in parts), first, last

    def repeat(self, least: int, most: int, inner: Any, flags: int) -> tuple[bool, Counter[int], Counter[int]]:
        before = len(self.reads)
        empty, first, last = self.walk(inner, flags)
        size = len(self.reads) - before
        if most <= 1:
            return empty or not least, first, last
        if most < LOOP and size * most <= 64:  # a few: each by itself
            copies = [(empty, first, last), *(self.walk(inner, flags) for _ in range(int(most) - 1))]
            first, last = copies[0][1].copy(), copies[0][2].copy()
            for number, (_, begins, ends) in enumerate(copies[1:], 2):
                for place in last if number > 1 else ():
                    self.follow[place].update(begins)
                last = last + ends if number > least or empty else ends
            return empty or not least, first, last
        for place in last:
            self.follow[place].update(first)
        return empty or not least, first, last


def reads(op: Any, value: Any, char: str, flags: int) -> bool:
    """Whether a node of a pattern reads a character."""
    if flags & re.IGNORECASE and op in (sre.LITERAL, sre.NOT_LITERAL, sre.IN):
        variants = {char.lower(), char.upper()[:1], char}
        hit = any(reads(op, value, c, flags & ~re.IGNORECASE) for c in variants)
        if op is sre.LITERAL or (op is sre.IN and value[0][0] is not sre.NEGATE):
            return hit
        return all(reads(op, value, c, flags & ~re.IGNORECASE) for c in variants)
    if op is sre.LITERAL:
        return ord(char) == value
    if op is sre.NOT_LITERAL:
        return ord(char) != value
    if op is sre.ANY:
        return bool(flags & re.DOTALL) or char != "\n"
    if op is sre.RANGE:
        return value[0] <= ord(char) <= value[1]
    if op is sre.CATEGORY:
        name = str(value).rpartition("CATEGORY_")[2]
        kind = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[name.removeprefix("NOT_")]
        return (re.match(kind, char) is None) == name.startswith("NOT_")
    negated = value[0][0] is sre.NEGATE
    return any(reads(kind, each, char, flags) for kind, each in value if kind is not sre.NEGATE) != negated


COMMON = "aZ0_ \t\n\r-.,:/<>\"'`()[]{}|*#@=é\u0301中，。“😀\0"


def alphabet_of(tree: Any, flags: int) -> str:
    """One character of each kind that the pattern tells apart."""
    nodes, chars = list[tuple[Any, Any]](), set(COMMON)

    def look(inner: Any) -> None:
        for op, value in inner:
            if op in (sre.LITERAL, sre.NOT_LITERAL):
                nodes.append((op, value))
                chars.add(chr(value))
            elif op is sre.IN:
                nodes.append((op, value))
                for kind, each in value:
                    if kind in (sre.LITERAL, sre.RANGE):
                        ends = [each] if kind is sre.LITERAL else [each[0], each[1], each[1] + 1]
                        chars.update(chr(c) for c in ends if c < 0x110000 and not 0xD800 <= c < 0xE000)
            elif op is sre.SUBPATTERN:
                look(value[3])
            elif op is sre.BRANCH:
                for branch in value[1]:
                    look(branch)
            elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
                look(value[2])
            elif op in (sre.ASSERT, sre.ASSERT_NOT):
                look(value[1])
            elif op is sre.ATOMIC_GROUP:
                look(value)
            elif op is sre.GROUPREF_EXISTS:
                for branch in value[1:]:
                    look(branch or [])

    look(tree)
    distinct = list({repr(node): node for node in nodes}.values())
    kinds: dict[tuple[bool, ...], str] = {}
    for char in sorted(chars, key=lambda c: (c not in COMMON, COMMON.find(c), c)):
        kinds.setdefault((char == "\n", *(reads(op, value, char, flags) for op, value in distinct)), char)
    return "".join(kinds.values())


# Attack texts

MOST_PAIRS, MOST_STEPS, MOST_ATTACKS = 400, 20_000, 40
"""What the analysis of one pattern may take: pairs of loops, steps from one state to the next, and texts."""
ENDS = ("\0", "", "\n\0", "中!")


@dataclass(frozen=True, order=True)
class Attack:
    """A text to pump: `before` leads into a loop, `pump` goes round it."""

    before: str
    pump: str

    def text(self, size: int, end: str) -> str:
        return self.before + self.pump * max(1, size // len(self.pump)) + end


class Automaton:
    """Positions with a place 0 in front of them, which reads anything where a pattern is looked for anywhere. Sets of
    characters are numbers, a bit for each character of the alphabet."""

    def __init__(self, positions: Positions, anywhere: bool) -> None:
        self.positions, self.alphabet, self.steps = positions, positions.alphabet, 0
        bits = {char: 1 << n for n, char in enumerate(self.alphabet)}
        self.reads = [(1 << len(bits)) - 1, *(sum(bits[char] for char in chars) for chars in positions.reads)]
        self.next = [tuple(p + 1 for p in positions.first), *(tuple(p + 1 for p in f) for f in positions.follow)]
        if anywhere:
            self.next[0] = (0, *self.next[0])
        self.loops: dict[int, int] = {}
        """Each place that can come back to itself, and its group."""
        for number, group in enumerate(components(self.next)):
            if len(group) > 1 or group[0] in self.next[group[0]]:
                self.loops |= dict.fromkeys(group, number)
        self.ways = self._paths(0)

    def doubled(self) -> Iterator[int]:
        """Places in a loop that lead to the same place in two ways: exponential."""
        for place, follow in enumerate(self.positions.follow, 1):
            if any(ways > 1 and self.loops.get(to + 1) == self.loops.get(place, -1) for to, ways in follow.items()):
                yield place

    def char(self, chars: int) -> str:
        return self.alphabet[(chars & -chars).bit_length() - 1]

    def _paths(self, begin: int) -> dict[int, str]:
        """For each place a text that leads there; at least one character."""
        found: dict[int, str] = {}
        queue = deque([(begin, "")])
        while queue:
            place, text = queue.popleft()
            for to in self.next[place]:
                if to not in found and self.reads[to]:
                    found[to] = text + self.char(self.reads[to])
                    queue.append((to, found[to]))
        return found

    def cycle(self, place: int) -> str | None:
        return self._paths(place).get(place)

    def pumps(self, p: int, q: int) -> Iterator[str]:
        """Texts that lead from p to p, from p to q and from q to q at once: each such pair adds a power."""
        start, goal = (p, p, q), (p, q, q)
        seen, queue, given = {start}, deque([(start, "")]), 0
        while queue and self.steps < MOST_STEPS and given < 4:
            (x, y, z), text = queue.popleft()
            back = [a for a in self.next[x] if self.loops.get(a) == self.loops.get(p)]
            round_ = [c for c in self.next[z] if self.loops.get(c) == self.loops.get(q)]
            for a, c in itertools.product(back, round_):
                both = self.reads[a] & self.reads[c]
                self.steps += 1
                for b in self.next[y] if both else ():
                    self.steps += 1
                    common = both & self.reads[b]
                    if not common:
                        continue
                    if (a, b, c) == goal:
                        chars = [char for n, char in enumerate(self.alphabet) if common >> n & 1]
                        for char in chars[:4] if not text else chars[:1]:
                            given += 1
                            yield text + char
                    elif (a, b, c) not in seen:
                        seen.add((a, b, c))
                        queue.append(((a, b, c), text + self.char(common)))


def components(follow: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups of places that lead to each other (Tarjan, without recursion)."""
    index, low, on, stack, groups = {}, {}, set[int](), list[int](), list[list[int]]()  # type: ignore[var-annotated]
    for root in range(len(follow)):
        if root in index:
            continue
        work = [(root, iter(follow[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while work:
            place, rest = work[-1]
            for to in rest:
                if to not in index:
                    index[to] = low[to] = len(index)
                    stack.append(to)
                    on.add(to)
                    work.append((to, iter(follow[to])))
                    break
                if to in on:
                    low[place] = min(low[place], index[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[place])
                if low[place] == index[place]:
                    group: list[int] = []
                    while not group or group[-1] != place:
                        group.append(stack.pop())
                        on.discard(group[-1])
                    groups.append(group)
    return groups


def attacks_on(found: Found) -> list[Attack]:
    """Texts that may make this pattern slow; measuring shows which do."""
    positions = Positions(found.pattern, found.flags)
    made: dict[Attack, None] = {}
    anchored = Automaton(positions, False)
    for place in anchored.doubled():
        if (cycle := anchored.cycle(place)) and place in anchored.ways:
            made[Attack(anchored.ways[place], cycle)] = None
    for place in list(anchored.loops)[:8]:  # plain ones, for what the automaton does not know: references, atoms
        before, cycle = anchored.ways.get(place), anchored.cycle(place)
        if before and cycle:
            made[Attack(before[:-1], cycle)] = None
            made |= {Attack("", pump): None for pump in (before + cycle, before, f"{before[:-1]} ", f"{before} ")}
    for automaton in (Automaton(positions, True), anchored) if found.anywhere else (anchored,):
        places = [place for place in sorted(automaton.loops) if not place or place in automaton.ways]
        loops = automaton.loops
        pairs = [(p, q) for p in places for q in places if p != q and automaton.reads[p] & automaton.reads[q]]
        pairs.sort(key=lambda pair: (loops[pair[0]] != loops[pair[1]], pair[0] != 0))  # in one loop: the worst first
        for p, q in pairs[:MOST_PAIRS]:
            for pump in automaton.pumps(p, q):
                made[Attack(automaton.ways[p] if p else "", pump)] = None
            if len(made) > MOST_ATTACKS or automaton.steps >= MOST_STEPS:
                break
    made |= {Attack("", char): None for char in "- \na<0中"}
    return list(made)[: MOST_ATTACKS + 10]


# Measuring

SIZES = (24, 256, 2_048, 8_192, 65_536)
MICROSECONDS = 6.0
"""CPU time for each character of a text of up to 64 kB. The law is 50 ms for all of it, 0.76 for each: the rest is for
slow machines."""
QUADRATIC, QUADRATIC_MICROSECONDS = 4.0, 1.0
"""The last text is eight times as long as the one before it. A pattern whose time for each character grows by this with
it has this limit instead: on a quick machine a quadratic one may stay below the other."""
GROWS, SUSPECT = 1.3, 0.02
"""The largest text is tried where the time for each character has grown by this, and is above this."""
TRIES = 3
"""How often a text is read for a time that is short; the least of them counts, since others can only add to it."""
LIMIT_S = 0.5
"""CPU time that one pattern may take for one text before it is killed."""


@dataclass(frozen=True)
class Slow:
    """A pattern and the text that makes it slow."""

    found: Found
    attack: str
    cost: str

    def __str__(self) -> str:
        return f"{self.found.where}  {self.cost} on {self.attack}  {self.found.pattern!r:.160}"


def cost_of(found: Found, attack: Attack) -> tuple[float, float, int]:
    """The worst time for each character, as a part of its limit and in microseconds, and the size of the text."""
    compiled = re.compile(found.pattern, found.flags)
    worst = (0.0, 0.0, 0)
    for end in ENDS:
        before = 0.0
        for size in SIZES:
            text: Any = attack.text(size, end)
            text = text.encode("utf-8", "replace") if isinstance(found.pattern, bytes) else text
            cost = microseconds(compiled, found, text)
            grows = size == SIZES[-1] and cost > QUADRATIC * before
            if size > 256 or (size == 256 and cost > 6 * MICROSECONDS):  # a short text is measured too roughly for more
                worst = max(worst, (cost / (QUADRATIC_MICROSECONDS if grows else MICROSECONDS), cost, size))
            if cost > 6 * MICROSECONDS or (size > 256 and cost < SUSPECT) or (size > 2_048 and cost < GROWS * before):
                break
            before = cost
    return worst


def microseconds(compiled: re.Pattern[Any], found: Found, text: Any) -> float:
    """For each character of the text. In a process with a CPU timer Linux counts `process_time` in ticks of some
    milliseconds, which is nothing for a short text: the time of the thread stays exact."""
    least = float("inf")
    for _ in range(TRIES):
        began = time.thread_time()
        run(compiled, found, text)
        least = min(least, time.thread_time() - began)
        if least > 0.02:  # a pause of the machine is a small part of that
            break
    return least * 1e6 / max(len(text), 1)


def run(compiled: re.Pattern[Any], found: Found, text: Any) -> None:
    """As the source uses the pattern: once at the beginning, or again and again as `sub` and `finditer` do."""
    if found.wholly:
        compiled.fullmatch(text)
    elif not found.anywhere:
        compiled.match(text)
    else:
        for _ in compiled.finditer(text):
            pass


def slow_attack(found: Found) -> str:
    """In a process of its own: the text that makes a pattern slow, empty where none does."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # `re` holds the interpreter: only the system can end it
            for attack in attacks_on(found):
                os.write(write, f"killed on {attack.before!r} + {attack.pump!r} * n\n".encode())
                signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
                worst = cost_of(found, attack)
                if worst[0] > 1:
                    worst = min(worst, cost_of(found, attack))  # once more: the first may be a cold cache
                signal.setitimer(signal.ITIMER_PROF, 0)
                if worst[0] > 1:
                    _, cost, size = worst
                    said = f"{cost:.1f} µs a character on {attack.before!r} + {attack.pump!r} * {size}\n"
                    os.write(write, said.encode())
                    os._exit(1)
            os.write(write, b"\n")
            os._exit(0)
        finally:
            os._exit(2)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said.splitlines()[-1] if said else "no word from the process that measured"


def slow_patterns(patterns: Iterable[Found]) -> list[str]:
    """Those of the patterns that are slow, with the text that shows it."""
    return [f"{found.where} {found.pattern!r:.140}: {said}" for found in patterns if (said := slow_attack(found))]
