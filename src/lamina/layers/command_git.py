"""Which git commands only read. What the repository itself may start is the matter of `command_repository`.

Pure: a table and what it cannot say, such as that an operand makes `git branch` write.
"""

import re

from lamina.layers.command_words import Program

_DIFF = (
    "stat shortstat numstat dirstat summary name-only name-status patch no-patch raw unified minimal patience "
    "histogram diff-algorithm= color no-color word-diff word-diff-regex= color-words color-moved ignore-all-space "
    "exit-code quiet "
    "ignore-space-change ignore-blank-lines ignore-space-at-eol ignore-submodules submodule cached staged merge-base "
    "diff-filter= find-renames find-copies no-renames relative no-relative full-index abbrev text check "
    "compact-summary "
    "no-ext-diff no-textconv src-prefix= dst-prefix= no-prefix inter-hunk-context= function-context "
    "pickaxe-all pickaxe-regex binary no-indent-heuristic indent-heuristic anchored= "
)
_LOG = _DIFF + (
    "oneline graph all branches tags remotes decorate no-decorate format= pretty author= committer= grep= all-match "
    "invert-grep regexp-ignore-case extended-regexp fixed-strings perl-regexp since= after= until= before= max-count= "
    "skip= reverse follow no-merges merges first-parent date= relative-date topo-order date-order author-date-order "
    "simplify-by-decoration full-history ancestry-path cherry-pick cherry-mark left-right no-walk walk-reflogs "
    "abbrev-commit no-abbrev-commit source cc min-parents= max-parents= left-only right-only boundary log-size "
    "diff-merges= no-notes notes no-mailmap mailmap use-mailmap clear-decorations glob= exclude="
)
_LISTING = (
    "list contains= no-contains= merged no-merged points-at= sort= format= color no-color column no-column ignore-case "
)
_DIFF_FLAGS, _DIFF_TEXTS = "pubwRaBMCDWszt0123456789", "UGSl"

SUBCOMMANDS: dict[str, Program] = {
    "status": Program(
        "sbuvz", long="short branch long porcelain untracked-files ignored ignore-submodules show-stash verbose "
        "ahead-behind no-ahead-behind column no-column renames no-renames null find-renames",
    ),
    "log": Program(_DIFF_FLAGS + "iEFPcgm", _DIFF_TEXTS + "nL", long=_LOG),
    "show": Program(_DIFF_FLAGS + "iEFPcgm", _DIFF_TEXTS + "nL", long=_LOG),
    "whatchanged": Program(_DIFF_FLAGS, _DIFF_TEXTS + "n", long=_LOG),
    "reflog": Program(_DIFF_FLAGS, "n", long=_LOG),
    "diff": Program(_DIFF_FLAGS + "cq", _DIFF_TEXTS, long=_DIFF),
    "diff-tree": Program(_DIFF_FLAGS + "rcmtv", _DIFF_TEXTS, long=_DIFF + "root no-commit-id stdin pretty format="),
    "diff-index": Program(_DIFF_FLAGS + "m", _DIFF_TEXTS, long=_DIFF),
    "diff-files": Program(_DIFF_FLAGS + "q0123", _DIFF_TEXTS, long=_DIFF),
    "range-diff": Program("s", long="no-patch color no-color creation-factor= stat"),
    "shortlog": Program("snec", long="summary numbered email group= all since= until= no-merges author= after="),
    "blame": Program("bltfnsewCMc", "L", long="porcelain line-porcelain since= date= show-email show-name reverse"),
    "annotate": Program("ltfnsew", "L"),
    "grep": Program(
        "nilLwvcEFGPHhqIaWpz0123456789", "eABCm", words=1,
        long="line-number ignore-case files-with-matches files-without-match word-regexp count cached "
        "recursive max-depth= heading break show-function function-context only-matching and or not name-only "
        "column extended-regexp fixed-strings perl-regexp color no-color full-name after-context= "
        "before-context= context=",
    ),
    "ls-files": Program(
        "cdmostukvz", "x", long="cached deleted modified others stage unmerged ignored exclude-standard directory "
        "error-unmatch full-name eol debug exclude= recurse-submodules format= deduplicate killed",
    ),
    "ls-tree": Program("rdtlz", long="name-only name-status long full-name full-tree abbrev object-only format="),
    "rev-parse": Program(
        "q", long="verify short abbrev-ref symbolic symbolic-full-name show-toplevel show-prefix show-cdup git-dir all "
        "absolute-git-dir git-common-dir is-inside-work-tree is-inside-git-dir is-bare-repository "
        "quiet revs-only no-revs branches tags remotes show-superproject-working-tree git-path= default= sq",
    ),
    "rev-list": Program("n0123456789", "", long=_LOG + " count objects parents children left-right header timestamp"),
    "describe": Program("", long="tags always dirty abbrev= long match= exclude= all contains exact-match"),
    "name-rev": Program("", long="name-only tags always refs= all"),
    "merge-base": Program("a", long="all is-ancestor octopus independent fork-point"),
    "cat-file": Program("tspe", long="batch-check batch-all-objects unordered"),
    "show-ref": Program("sdhq", long="heads tags head hash abbrev dereference verify quiet branches"),
    "for-each-ref": Program("", long="count= " + _LISTING),
    "count-objects": Program("vH", long="verbose human-readable"),
    "check-ignore": Program("vnq", long="verbose non-matching quiet no-index"),
    "check-attr": Program("a", long="all cached"),
    "check-ref-format": Program("", long="branch normalize"),
    "cherry": Program("v"),
    "version": Program("", long="build-options", most=0),
    "branch": Program("arvlq", long=_LISTING + "all remotes show-current verbose abbrev no-abbrev"),
    "tag": Program("ln0123456789", long=_LISTING),
    "remote": Program("v", long="verbose all push"),
    "stash": Program("pu", long=_DIFF + "include-untracked only-untracked oneline date="),
    "worktree": Program("v", long="porcelain verbose"),
    "config": Program("", long="get get-all get-regexp get-urlmatch show-origin show-scope local global system type= "
        "bool int path name-only null default="),
}  # fmt: skip

_LISTS = {"branch": {"--list", "--contains", "--no-contains", "--merged", "--no-merged", "--points-at"}}
_LISTS["tag"] = _LISTS["branch"] | {"-l"}
_FIRST = {"stash": {"list", "show"}, "worktree": {"list"}, "remote": {"get-url"}}
_PRIVATE = re.compile(
    r"extraheader|password|passwd|token|secret|credential|proxy|cookie|user\.signingkey", re.IGNORECASE
)
DESCENDS = frozenset(
    ("status", "diff", "diff-index", "diff-files", "diff-tree", "describe", "stash", "ls-files", "grep", "range-diff")
)
"""Subcommands that look into repositories inside of the repository, and obey their configuration."""


def asks_for_effect(subcommand: str, options: set[str], operands: list[str]) -> str:
    """Why a subcommand that reads would write with these operands; empty when it does not."""
    if subcommand in _LISTS and operands and not options & _LISTS[subcommand]:
        return f"makes a new {subcommand}"
    if (
        subcommand in _FIRST
        and (operands or subcommand != "remote")
        and (not operands or operands[0] not in _FIRST[subcommand])
    ):
        return f"{subcommand} {operands[0]} changes things" if operands else f"{subcommand} changes things"
    if subcommand == "reflog" and operands and operands[0] in ("expire", "delete", "drop", "write"):
        return f"reflog {operands[0]} changes things"
    if subcommand == "config":
        if _PRIVATE.search(" ".join(operands)):
            return "config may show a secret"
        reads = options & {"--get", "--get-all", "--get-urlmatch"}
        if "--get-regexp" in options or len(operands) != 1 or (not reads and "." not in operands[0]):
            return "config may change things or show a secret"
    return ""


def looks_inside(subcommand: str, options: set[str]) -> bool:
    """Whether a call may look into repositories that lie inside of this one."""
    return subcommand in DESCENDS or any(re.match(r"--(?:submodule|recurse-submodules)", each) for each in options)
