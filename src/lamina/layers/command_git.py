"""Which git commands only read, and whether the repository itself makes git run something.

A repository's own configuration can name programs (fsmonitor, diff drivers, hooks) that even `git status` starts; a
folder that came from outside may bring such a repository along. So the configuration is read before git is trusted.
"""

import os
import re
from pathlib import Path

from lamina.layers.command_words import Program

_DIFF = (
    "stat shortstat numstat dirstat summary name-only name-status patch no-patch raw unified minimal patience "
    "histogram diff-algorithm= color no-color word-diff word-diff-regex= color-words color-moved ignore-all-space "
    "exit-code quiet "
    "ignore-space-change ignore-blank-lines ignore-space-at-eol ignore-submodules submodule cached staged merge-base "
    "diff-filter= find-renames find-copies no-renames relative no-relative full-index abbrev text check "
    "compact-summary "
    "no-ext-diff no-textconv src-prefix= dst-prefix= no-prefix no-index inter-hunk-context= function-context "
    "pickaxe-all pickaxe-regex binary no-indent-heuristic indent-heuristic anchored= "
)
_LOG = _DIFF + (
    "oneline graph all branches tags remotes decorate no-decorate format= pretty author= committer= grep= all-match "
    "invert-grep regexp-ignore-case extended-regexp fixed-strings perl-regexp since= after= until= before= max-count= "
    "skip= reverse follow no-merges merges first-parent date= relative-date topo-order date-order author-date-order "
    "simplify-by-decoration full-history ancestry-path cherry-pick cherry-mark left-right no-walk walk-reflogs "
    "abbrev-commit no-abbrev-commit source cc min-parents= max-parents= left-only right-only boundary log-size "
    "diff-merges= remerge-diff no-notes notes no-mailmap mailmap use-mailmap clear-decorations glob= exclude="
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
    "blame": Program("bltfnsewCMc", "LS", long="porcelain line-porcelain since= date= show-email show-name reverse"),
    "annotate": Program("ltfnsew", "L"),
    "grep": Program(
        "nilLwvcEFGPHhqIaWpz0123456789", "eABCm", words=1,
        long="line-number ignore-case files-with-matches files-without-match word-regexp count cached untracked "
        "no-index recursive max-depth= heading break show-function function-context only-matching and or not name-only "
        "column extended-regexp fixed-strings perl-regexp color no-color full-name after-context= "
        "before-context= context=",
    ),
    "ls-files": Program(
        "cdmostukvz", "xX", long="cached deleted modified others stage unmerged ignored exclude-standard directory "
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
    "var": Program("l", most=1),
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
_RUNS = re.compile(
    r"\b(fsmonitor|external|textconv|command|process|clean|smudge|pager|program|driver|path|worktree|hookspath|"
    r"alternaterefscommand|promisor|partialclone)\s*=[ \t]*([^\n]*)",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"^\"?(true|false|yes|no|on|off|0|1|git-lfs [\w %-]+)\"?\s*$", re.IGNORECASE)
_MOST_CONFIG = 256 * 1024


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


def runs_programs(folder: Path, root: Path) -> str:
    """Why git, started in this folder, might start something else; empty when it will not."""
    for place in (folder, *folder.parents):
        inner = place != root and place.is_relative_to(root)
        if (place / ".git").exists() or (place / ".git").is_symlink():
            if inner:
                return f"{place.name}/ is a repository of its own, whose configuration may start programs"
            return _configured(place / ".git")
        if (place / "HEAD").exists() and (place / "objects").exists() and (place / "refs").exists():
            return f"{place.name}/ looks like a repository without a work tree, whose configuration may start programs"
        if place == place.parent:
            break
    return ""


def _configured(git: Path) -> str:
    """Programs that the repository's configuration or hooks would start."""
    homes = [git]
    try:
        if git.is_file():
            named = git.read_text(encoding="utf-8", errors="replace")[:4096].removeprefix("gitdir:").strip()
            homes = [(git.parent / named).resolve()]
            common = homes[0] / "commondir"
            if common.is_file():
                homes.append((homes[0] / common.read_text(encoding="utf-8", errors="replace").strip()).resolve())
        files = [home / name for home in homes for name in ("config", "config.worktree")]
        files += [path for home in homes for path in sorted((home / "modules").glob("**/config"))[:50]]
        for path in files:
            if path.is_file():
                with path.open(encoding="utf-8", errors="replace") as opened:
                    found = _named_program(opened.read(_MOST_CONFIG + 1), homes)
                if found:
                    return found
    except OSError as error:
        return f"its configuration cannot be read ({error.strerror})"
    if any(os.path.lexists(home / "hooks" / "post-index-change") for home in homes):
        return "the repository has a hook that runs when git looks at its files"
    return ""


def _named_program(text: str, homes: list[Path]) -> str:
    if len(text) > _MOST_CONFIG:
        return "its configuration is too long to be read"
    for key, value in _RUNS.findall(text.replace("\\\n", "")):
        if key.lower() == "hookspath":
            hooks = homes[-1].parent / value.strip().strip('"') / "post-index-change"
            if not os.path.lexists(hooks):
                continue
        if key.lower() in ("promisor", "partialclone"):
            return "the repository fetches what is missing from elsewhere"
        if not _HARMLESS.match(value):
            return f"the repository's configuration sets {key.lower()}, which may start a program"
    return ""
