#!/usr/bin/env bash
# Runs the benchmarks on the GPUs of one machine, several at once, within a time limit.
#
#   OUT=folder SHA=commit benchmarks/gpus.sh 0=transition-i 1=transition-j 2=ramp 3=overhead
#   OUT=folder SHA=commit PAIR=folder benchmarks/gpus.sh 0=overhead:330+backends 1=sampling
#
# An argument is GPUS=STREAM[:SECONDS][+STREAM[:SECONDS]...]: its streams, of the table below, run
# one after the other on its GPUs (0,1 for two), all arguments at the same time. SECONDS is the
# most that a stream may take; without it, all that is left of LIMIT_S (590), the whole script's
# limit. Deadlines follow from both; what does not fit is left out and said. PAIR is what
# benchmarks/lab/pack_pair.py unpacked: PAIR/target, PAIR/prompts.json, and
# PAIR/head where the draft is not SmolLM2's. BEFORE is COMMIT=FOLDER of an earlier commit
# (benchmarks/lab/arms.py). EARLIER are the run files of earlier visits of real text.
# VISIT (1) numbers the visit to every cell of the matrix and the first pass of the transitions, and
# with it the draws. CONCURRENCY (64,16,2) and REPEATS (3) are those of the transitions (five times
# as many where two arms are measured alone).
# Arguments share the cores evenly, each on its own, so that no server is moved to a core that
# another one has warmed. CORES (all) names the cores to share, "0 2 4": one thread of each
# physical core where a machine hides which are siblings. Each benchmark writes to OUT as it goes;
# an argument's output goes to OUT/STREAM_STREAM.txt. Exits with 1 if a stream failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

least_s=140  # 45 to unwind; servers started in 46 to 70 s (matrix-h200-fa3.json.xz), four at once; windows
copying_s=25 # left to whoever takes OUT off the machine
usage="GPUS=STREAM[:SECONDS][+STREAM[:SECONDS]...], GPUS as 0 or 0,1, SECONDS from $least_s to 9999"

# Six windows in a row at batch 128 want 470 tokens a request, which 65,536 in all are not.
matrix="--at-once --context-length 131072 --windows 6 --max-total-tokens 81920"
matrix_a="matrix run $matrix --arms builtin,goodput,static-3,none"
matrix_b="matrix run $matrix --arms ema,static-7,static-5,static-1"
visit=${VISIT:-1} # of a cell; on four GPUs c and d are the next one, of the texts, too
# A model of 1B beside each of 8B: three servers fit a GPU. For the next visit swap the GPUs.
standalone="matrix run --at-once --context-length 131072 --windows 6 --max-total-tokens 65536"
standalone="$standalone --drafter standalone --batches 1,4,16,32,64 --first-repeat $visit"
# Rows of unlike acceptance: what packed rounds gain over one depth for all; with chances that
# scatter, which the draft's confidence tells, and without.
# Rows at 7 steps reach 480 tokens in four windows; 128 of them, four times in 139 GiB.
kinds="matrix run --at-once --context-length 131072 --windows 4 --max-total-tokens 83968"
kinds="$kinds --batches 64,128,16 --repeats 3"
kinds="$kinds --acceptances 0.95/0.3~3,0.9/0.3~3,0.3/0.5/0.7/0.9~3,0.7~3,0.7"
flashinfer="matrix run $matrix --attention-backend flashinfer"
small="matrix run $matrix --batches 1,16,64" # two servers fit a GPU of 80 GB
two_a="--arms goodput,none"
two_b="--arms builtin,static-3"
two_c="--arms ema,static-1"
two_d="--arms static-5,static-7"
# Sizes between those of the matrix, a start of ours on every GPU: five servers fit 139 GiB.
starts="matrix run --at-once --context-length 131072 --windows 6 --repeats 2 --max-total-tokens 40960"
starts="$starts --batches 24,48,96 --acceptances 0.4,0.6,0.8,mixed"
# A transition of 2 x 192 tokens a slot and phase fits the limit, the host's 4 x 256 does not.
repeats=${REPEATS:-3}
loop="--concurrency ${CONCURRENCY:-64,16,2} --waves 2 --new-tokens 192"
phases="$loop --repeats $repeats"
injected="--workloads injected --context-length 131072 --max-total-tokens 32768 $phases"
injected_a="transition run $injected --arms none,static-7,builtin,goodput"
injected_b="transition run $injected --arms static-1,static-3,static-5"
ramp="--seconds 40 --context-length 131072"
real="transition run PAIR --context-length 0 --first-repeat $visit"
real_all="$real --arms none,static-1,static-3,static-5,static-7,builtin,goodput $phases"
real_two="$real --arms none,goodput $loop --repeats $((5 * repeats))"
text_repeats=9
text_first=$(((visit - 1) * text_repeats + 1))
text="real_text run PAIR EARLIER --repeats $text_repeats --trail"
text_a="$text --traffic phases,mixed,chat"
text_b="$text --traffic code,json,maths,summary,translation"
table_arms=none,static-ngram-1,static-ngram-3,static-ngram-7,static-ngram-15,goodput-ngram
text_kinds="$text --concurrency 64,128,256 --arms none,static-1,static-3,static-5,static-7"
text_kinds="$text_kinds,goodput-tiers,goodput-packed,goodput-confident"
table="$text --arms $table_arms --concurrency 1,8,64"
text_ramp="ramp run PAIR --seconds 40 --context-length 0"
drafters="backends run --new-tokens 64 --many 100 --cases"

# Stream, first port, command; PAIR stands for the pair's arguments, TARGET for its target's, BEFORE
# for the earlier commit's. Ports of a fleet follow its first; from 32768 on the system gives them to
# anybody.
declare -A ports=() commands=()
while read -r name port command; do
  ports[$name]=$port
  commands[$name]=$command
done <<TABLE
matrix-a               20300 $matrix_a --first-repeat $visit --tag a$visit
matrix-b               20900 $matrix_b --first-repeat $visit --tag b$visit
matrix-c               26000 $matrix_b --first-repeat $((visit + 1)) --tag b$((visit + 1))
matrix-d               26600 $matrix_a --first-repeat $((visit + 1)) --tag a$((visit + 1))
kinds-a                9000  $kinds --arms static-1,static-3,goodput-packed,goodput-confident --record \
  --first-repeat $((visit * 3 - 2)) --tag ka$visit
kinds-b                8400  $kinds --arms static-5,static-7,goodput-tiers,none \
  --first-repeat $((visit * 3 - 2)) --tag kb$visit
flashinfer-a           12000 $flashinfer $two_a --tag fa$visit
flashinfer-b           12300 $flashinfer $two_b --tag fb$visit
flashinfer-c           12600 $flashinfer $two_c --tag fc$visit
flashinfer-d           12900 $flashinfer $two_d --tag fd$visit
small-a                13200 $small $two_a --tag sa$visit
small-b                13500 $small $two_b --tag sb$visit
small-c                13800 $small $two_c --tag sc$visit
small-d                14100 $small $two_d --tag sd$visit
starts-a               14400 $starts --arms static-1,static-3,static-5,static-7,goodput --tag n1
starts-b               14700 $starts --arms none,static-1,static-3,static-5,goodput --tag n2
starts-c               15000 $starts --arms none,static-3,static-5,static-7,goodput --tag n3
starts-d               15300 $starts --arms none,static-1,static-5,static-7,goodput --tag n4
standalone-a           10200 $standalone --arms goodput,static-3,none --tag da$visit
standalone-b           10800 $standalone --arms static-1,static-5,static-7 --tag db$visit
transition-i           22700 $injected_a --first-repeat $visit --tag i$visit
transition-j           23300 $injected_b --first-repeat $visit --tag j$visit
transition-k           18800 $injected_b --first-repeat $((visit + repeats)) --tag k$visit
transition-l           19400 $injected_a --first-repeat $((visit + repeats)) --tag l$visit
two-mixed              18200 $real_two --workloads mixed-text --tag ts$visit
two-alternating        17900 $real_two --workloads alternating --tag ta$visit
transition-real        23900 $real_all --workloads mixed-text --tag s$visit
transition-alternating 24500 $real_all --workloads alternating --tag a$visit
text-all               7200  $text --first-repeat $text_first --tag z$visit
text-a                 15600 $text_a --first-repeat $text_first --tag a$visit
text-b                 15900 $text_b --first-repeat $text_first --tag b$visit
text-c                 16200 $text_a --first-repeat $((text_first + text_repeats)) --tag a$((visit + 1))
text-d                 16500 $text_b --first-repeat $((text_first + text_repeats)) --tag b$((visit + 1))
text-sampled           16800 $text --first-repeat $text_first --tag y$visit \
  --traffic phases,mixed --temperature 0.7
text-kinds-a           11200 $text_kinds --first-repeat $text_first --tag ka$visit --traffic mixed,phases
text-kinds-b           11600 $text_kinds --first-repeat $text_first --tag kb$visit --traffic chat,json,maths
table-a                9600  $table --first-repeat $text_first --tag n$visit --traffic edits,chat
table-b                9900  $table --first-repeat $text_first --tag m$visit --traffic quotes
text-ramp-1            17100 $text_ramp --arms none,builtin,goodput --first-repeat 1 --tag t1
text-ramp-2            17400 $text_ramp --arms builtin,goodput,none --first-repeat 2 --tag t2
text-ramp-3            18500 $text_ramp --arms goodput,none,builtin --first-repeat 3 --tag t3
ramp                   25100 ramp run $ramp --arms goodput,none,builtin --tag 1
ramp-2                 27800 ramp run $ramp --arms none,builtin,goodput --first-repeat 2 --tag 2
ramp-3                 30800 ramp run $ramp --arms builtin,goodput,none --first-repeat 3 --tag 3
defaults-pair          32100 defaults run --arms ours,none --beside --tag 1
defaults-builtin       20000 defaults run --arms builtin --tag 2
overhead               25700 overhead run --context-length 131072 --arms goodput --tag o1
sampling               28100 sampling run PAIR --tag 1
sampling-packed        7500  sampling run PAIR --cells t0.8,t1,top_p,top_k --seed 4 --tag 4 \
  --arms none,none-again,static-3,packed-lengths,packed-confidence,packed-rejection,wrong,wrong-slightly
sampling-of-host       31700 sampling run PAIR --cells min_p,top_k_top_p --seed 2 --tag 2
backends               28700 backends run PAIR --new-tokens 64 --tag 1 --cases flashinfer,triton
backends-mla           29300 backends run --new-tokens 64 --tag 2 --cases flashinfer-mla,triton-mla
backends-table         28400 $drafters default-llama-ngram,flashinfer-llama-ngram --tag 5
backends-whole         29000 $drafters default-llama-standalone,flashinfer-llama-standalone --tag 7
backends-packed        9300  backends run PAIR --new-tokens 64 --tag 6 --cases default-packed
backends-confident     7800  backends run PAIR --new-tokens 64 --many 24 --tag 8 --cases default-confident
backends-tp            29900 backends run --new-tokens 64 --tag 3 --cases triton-mla-tp2
zero-8b                21200 never_below_none run --repeats 6 --tag 8b
zero-small             21800 never_below_none run TARGET BEFORE --model smollm2 --repeats 6 --tag smollm2 \
  --max-total-tokens 262144
texts-plans            23600 backends run --new-tokens 64 --many 200 --tag 4 \
  --cases flashinfer-llama,flashinfer-llama-slow-gpu
TABLE

fail() {
  echo "$0: $*" >&2
  exit 2
}

# check_argument ARGUMENT: ends the script unless it can run beside those before.
declare -A taken=()
check_argument() {
  local item='[a-z0-9-]+(:[1-9][0-9]{1,3})?' gpus streams each
  [[ $1 =~ ^[0-9](,[0-9])*=$item(\+$item)*$ ]] || fail "argument '$1': allowed is $usage."
  IFS=, read -ra gpus <<<"${1%%=*}"
  IFS=+ read -ra streams <<<"${1#*=}"
  for each in "${gpus[@]}" "${streams[@]%:*}"; do
    [ -z "${taken[$each]-}" ] ||
      fail "argument '$1': $each is given twice, allowed is once; streams of a GPU are joined by +."
    taken[$each]=yes
  done
  for each in "${streams[@]}"; do
    [[ $each != *:* ]] || ((${each#*:} >= least_s)) || fail "argument '$1': allowed is $usage."
    check_stream "${each%:*}" "${#gpus[@]}"
  done
}

# check_stream STREAM NUM_GPUS
check_stream() {
  [ -n "${ports[$1]-}" ] || fail "there is no stream '$1', allowed are: $(streams_by_name)."
  [[ $1 != *-tp && $1 != *-pair || $2 -ge 2 ]] || fail "$1 has $2 GPU, allowed are two or more: 0,1=$1."
  [[ " ${commands[$1]} " != *" BEFORE "* || ${BEFORE-} == *=* ]] ||
    fail "$1: BEFORE is '${BEFORE-}', allowed is COMMIT=FOLDER."
  [[ ! " ${commands[$1]} " =~ \ (PAIR|TARGET)\  || -d ${PAIR-}/target && -f $PAIR/prompts.json ]] ||
    fail "$1: PAIR is '${PAIR-}', allowed is a folder that holds target and prompts.json."
}

streams_by_name() { printf '%s\n' "${!ports[@]}" | sort | paste -sd ' '; }

# run_stream GPUS STREAM[:SECONDS]
run_stream() {
  local stream=${2%:*} words=() word
  local command_s=$((limit_s - copying_s - SECONDS))
  if [[ $2 == *:* ]] && ((${2#*:} < command_s)); then
    command_s=${2#*:}
  fi
  if ((command_s < least_s)); then
    echo "$stream: left out for want of time, $command_s s of at least $least_s"
    return 1
  fi
  for word in ${commands[$stream]}; do
    case $word in
      BEFORE) words+=(--before "$BEFORE") ;;
      EARLIER) [ -z "${EARLIER-}" ] || words+=(--earlier $EARLIER) ;;
      TARGET) words+=(--target "$PAIR/target") ;;
      PAIR)
        words+=(--target "$PAIR/target" --prompts "$PAIR/prompts.json")
        [ ! -d "$PAIR/head" ] || words+=(--draft "$PAIR/head")
        ;;
      *) words+=("$word") ;;
    esac
  done
  # INT unwinds, so that servers end and logs are kept; a server left over would keep its memory.
  CUDA_VISIBLE_DEVICES=$1 timeout -s INT -k 20 "$command_s" \
    python3 -m "benchmarks.studies.${words[0]}" "${words[@]:1}" --port "${ports[$stream]}" \
    --deadline $((command_s - 45)) --git-sha "$SHA" --out "$OUT" && return
  echo "$stream: ended with status $?"
  return 1
}

# keep_to_share NUMBER OF: keeps this process to one of OF equal shares of the cores.
keep_to_share() {
  local cores share
  read -ra cores <<<"${CORES:-$(seq -s ' ' 0 $(($(getconf _NPROCESSORS_ONLN) - 1)))}"
  share=$((${#cores[@]} / $2))
  ((share > 0)) || return 0
  taskset -cp "$(IFS=,; echo "${cores[*]:share * $1:share}")" $BASHPID
}

# run_argument ARGUMENT: all its streams, whatever the one before did.
run_argument() {
  local streams stream failed=0
  IFS=+ read -ra streams <<<"${1#*=}"
  for stream in "${streams[@]}"; do
    run_stream "${1%%=*}" "$stream" || failed=1
  done
  return $failed
}

limit_s=${LIMIT_S:-590}
[[ $limit_s =~ ^[1-9][0-9]{0,3}$ ]] || fail "LIMIT_S is '$limit_s', allowed is 1 to 9999, seconds."
[ -n "${OUT-}" ] || fail "OUT is '', allowed is a folder for the results."
[ -n "${SHA-}" ] || fail "SHA is '', allowed is the commit that is measured."
[ $# -gt 0 ] || fail "no argument, allowed is one or more of $usage."
for argument; do
  check_argument "$argument"
done

ulimit -n "$(ulimit -Hn)"
export TINY_HEAD_DIM=${TINY_HEAD_DIM:-64} # of miniatures: on a GPU attention has no kernels for 32
mkdir -p "$OUT"
logs=() runs=() failed=0
for argument; do
  names=$(sed -E 's/:[0-9]+//g; y/+/_/; s/^(.{200}).*/\1/' <<<"${argument#*=}")
  { keep_to_share "${#runs[@]}" $#; run_argument "$argument"; } >"$OUT/$names.txt" 2>&1 &
  logs+=("$OUT/$names.txt")
  runs+=($!)
done
for each in "${runs[@]}"; do
  wait "$each" || failed=1
done
tail -v -n 30 "${logs[@]}"
exit $failed
