#!/usr/bin/env bash
# What is not measured yet, as three runs of less than ten minutes on a machine with two H200s.
#
#   OUT=folder SHA=commit benchmarks/two_gpus.sh 1     # 8B shapes: transitions | ramp
#   OUT=folder SHA=commit benchmarks/two_gpus.sh 2     # the same, other arms | trees; two ranks
#   OUT=folder SHA=commit PAIR=folder benchmarks/two_gpus.sh 3   # trees, backends | sampling
#
# PAIR is what benchmarks/pack_pair.py unpacked: PAIR/target and PAIR/prompts.json. LIMIT_S (590) is
# how long a run may take: deadlines follow from it, and what does not fit is left out and said.
# Each benchmark writes to OUT as it goes, its output to OUT/gpu0.txt and OUT/gpu1.txt.
set -uo pipefail
cd "$(dirname "$0")/.."

part=${1:?which part: 1, 2 or 3}
: "${OUT:?a folder for the results}" "${SHA:?the commit that is measured}"
limit_s=${LIMIT_S:-590}
injected=(--workloads injected --max-total-tokens 32768 --concurrency 64,16,2
  --waves 2 --new-tokens 192 --repeats 3)
trees=(--at-once --batches 1,4,8 --max-total-tokens 32768)
ulimit -n "$(ulimit -Hn)"

left_s() { echo $((limit_s - SECONDS)); }

# gpu GPUS RESERVE_S BENCHMARK ARGUMENTS...: all the time that is left but RESERVE_S.
gpu() {
  local gpus=$1 reserve_s=$2 benchmark=$3
  shift 3
  local command_s=$(($(left_s) - reserve_s))
  if [ "$command_s" -lt 100 ]; then
    echo "left out for want of time: $benchmark $*"
    return
  fi
  # INT unwinds, so that servers end and logs are kept; a server left over would keep its memory.
  CUDA_VISIBLE_DEVICES=$gpus timeout -s INT -k 20 "$command_s" python3 -m "benchmarks.$benchmark" \
    "$@" --deadline $((command_s - 45)) --git-sha "$SHA" --out "$OUT"
}

mkdir -p "$OUT"
case $part in
  1)
    gpu 0 25 transition run "${injected[@]}" --arms none,static-7,builtin,goodput \
      --port 21300 --tag i >"$OUT/gpu0.txt" 2>&1 &
    gpu 1 25 ramp run --seconds 50 --port 26300 --tag 1 >"$OUT/gpu1.txt" 2>&1 &
    ;;
  2)
    gpu 0 190 transition run "${injected[@]}" --arms static-1,static-3,static-5 \
      --port 21600 --tag j >"$OUT/gpu0.txt" 2>&1 &
    gpu 1 190 matrix run "${trees[@]}" --arms none,static-3,goodput,goodput-trees \
      --port 26600 --tag t1 >"$OUT/gpu1.txt" 2>&1 &
    wait
    gpu 0,1 25 tensor_parallel run --port 28600 --tag 1 >>"$OUT/gpu0.txt" 2>&1
    ;;
  3)
    : "${PAIR:?the folder of the SmolLM2 pair}"
    pair=(--target "$PAIR/target" --prompts "$PAIR/prompts.json")
    gpu 1 25 sampling run "${pair[@]}" --port 26900 --tag 1 >"$OUT/gpu1.txt" 2>&1 &
    {
      gpu 0 250 matrix run "${trees[@]}" --port 21900 --tag t2 \
        --arms static-5,static-1-4-5,static-3-4-16,static-5-4-12
      gpu 0 25 backends run "${pair[@]}" --cases flashinfer,flashinfer-mla,triton-mla,triton \
        --new-tokens 64 --port 22900 --tag 1
    } >"$OUT/gpu0.txt" 2>&1 &
    ;;
  *)
    echo "$0: part $part: 1, 2 or 3." >&2
    exit 2
    ;;
esac
wait
tail -n 60 "$OUT/gpu0.txt" "$OUT/gpu1.txt"
