# Every habit of the house. `just` lists them; each only calls what can be called without just.

_default:
    @just --list --unsorted

# Run cocoon from the source tree: just run vm list
run *ARGS:
    cargo run --quiet --bin cocoon -- {{ARGS}}

# All that continuous integration checks, or some stages of it: just test clippy test
test *STAGES:
    scripts/test {{STAGES}}

# Format, then let clippy complain
lint:
    cargo fmt --all
    scripts/test clippy

# Build the small guest that tests and the quickstart boot
guest *ARGS:
    scripts/guest-image {{ARGS}}

# From nothing to a VM and through its whole life
quickstart *ARGS:
    scripts/quickstart {{ARGS}}

# Kill every verb at every boundary of an effect, recover, compare
crash *ARGS:
    cargo nextest run -p cocoon --features crash-points --test crash_matrix {{ARGS}}

# Kill N random processes under a mixed load, with the choices of SEED if given: just torture 2000 7
torture N="2000" SEED="":
    COCOON_TORTURE={{N}} {{ if SEED == "" { "" } else { "COCOON_SEED=" + SEED } }} cargo nextest run -p cocoon --features crash-points --test torture --no-capture

# Cut the power of a real file system N times under the journal and N times under commands (root): just power-cuts 40
power-cuts N="40":
    POWER_CUTS={{N}} COCOON_REQUIRE=powercut cargo nextest run -p cocoon-journal --test power_cut --no-capture
    POWER_CUTS={{N}} COCOON_REQUIRE=powercut cargo nextest run -p cocoon --test disks --no-capture power::

# Fail every EVERY-th call of the journal's files with each of its errors, and N of whole commands: just faults 1 1000
faults EVERY="1" N="1000":
    JOURNAL_FAULTS={{EVERY}} cargo nextest run -p cocoon-journal --test journal --no-capture faults::
    COCOON_FAULTS={{N}} cargo nextest run -p cocoon --test disks --no-capture failing::

# N kills, damage and failing calls mixed over processes on one journal, with the choices of SEED if given: just torture-journal 10000 7
torture-journal N="10000" SEED="":
    JOURNAL_TORTURE={{N}} {{ if SEED == "" { "" } else { "JOURNAL_SEED=" + SEED } }} cargo nextest run -p cocoon-journal --test journal --no-capture torture

# N processes that create, stop, delete and list on one root, so many of them at once: just crowd 256 256
crowd N="256" AT_ONCE="32":
    COCOON_CROWD={{N}} COCOON_AT_ONCE={{AT_ONCE}} cargo nextest run -p cocoon --features crash-points --test crowd --no-capture a_crowd

# The pure model: its unit tests, small scopes searched whole, and drawn scenarios
model *ARGS:
    cargo nextest run -p cocoon-model -p cocoon-check --features cocoon-check/mutants {{ARGS}}

# Search every interleaving and every crash of the standard scopes; deep: with one more fault of each kind, then walks, SECONDS for each: just check-model deep 600
check-model KIND="standard" SECONDS="300":
    #!/usr/bin/env bash
    set -euo pipefail
    check() { cargo run --release --quiet -p cocoon-check --locked -- --budget {{SECONDS}} "$@"; }
    case {{KIND}} in
        standard) check ;;
        deep) check --scope deep --extra 1 --states 60000000 || [[ $? == 3 ]]; check --scope wide --walks 100000000 || [[ $? == 3 ]] ;;
        *) echo "there is no kind '{{KIND}}'; there are: standard, deep" >&2; exit 2 ;;
    esac

# Put every historical fault back, one after the other; each has to be found: just mutants, just mutants late-exit
mutants NAME="all":
    cargo run --release --quiet -p cocoon-check --features mutants --locked -- --mutant {{NAME}}

# Try other inputs than CI's in every property test, N rounds; a failing round prints its seed: just explore 20
explore N="10":
    #!/usr/bin/env bash
    set -euo pipefail
    for _ in $(seq {{N}}); do
        export PROPTEST_RNG_SEED=$RANDOM$RANDOM
        echo "PROPTEST_RNG_SEED=$PROPTEST_RNG_SEED"
        cargo nextest run -p cocoon-journal -p cocoon-model -p cocoon --lib --bins --tests -E 'not test(/crash_matrix|torture/)' --status-level fail
    done

# Rewrite the tables of docs/model.md: states, seconds and bytes of each scope, and the mutants
model-tables:
    scripts/model-tables

# Measure against peers, in one run: just bench storm|syncs|replay|footprint|sweep|exits|list|reconcile|run (bench NAME --help tells more)
bench NAME *ARGS:
    cargo build --release --quiet -p cocoon -p cocoon-fake-vmm -p cocoon-bench
    target/release/cocoon-bench {{NAME}} {{ARGS}}

# Run a fuzz target for some time: just fuzz frame 60
fuzz TARGET SECONDS="60":
    scripts/fuzz {{TARGET}} {{SECONDS}}

# Rewrite what is generated (reference, schemas' snapshots, help), then build the book
docs:
    COCOON_BLESS=1 cargo nextest run -p cocoon --test cli --test events
    mdbook build docs

# Rewrite the golden files of tests; look at the difference before you commit it
golden:
    COCOON_BLESS=1 cargo nextest run --workspace --all-features

# Licences, bans, sources and advisories of all dependencies (needs cargo-deny and the network)
deny:
    cargo deny --all-features check

# What continuous integration runs, on this machine (installs Debian packages)
ci:
    .ci/run
