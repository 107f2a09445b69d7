// The host's own trees by recency: a line of numbers for each case of standard input.
// A case: depth, least and most breadth, nodes, sequences; each sequence: its length and tokens.
// The last sequence is looked up. A line: the tokens of the nodes, then their ancestors.
#include <cstdio>
#include <vector>

#include "trie.h"

static std::vector<int32_t> read_tokens() {
  int length = 0;
  std::scanf("%d", &length);
  std::vector<int32_t> tokens(length);
  for (auto& token : tokens) std::scanf("%d", &token);
  return tokens;
}

int main() {
  int depth, least, most, nodes, sequences;
  while (std::scanf("%d %d %d %d %d", &depth, &least, &most, &nodes, &sequences) == 5) {
    sglang::ngram::Param param{};
    param.max_trie_depth = depth;
    param.min_bfs_breadth = least;
    param.max_bfs_breadth = most;
    param.draft_token_num = nodes;
    sglang::ngram::Trie trie(10000, param);
    for (; sequences > 1; --sequences) {
      auto tokens = read_tokens();
      trie.insert(tokens.data(), tokens.size());
    }
    auto newest = read_tokens();
    sglang::ngram::MatchState state;
    auto tree = trie.buildRecency(
        newest.data(), newest.size(), newest.back(), nodes - 1, param, state, newest.size());
    for (auto token : tree.token) std::printf("%d ", token);
    for (auto is_ancestor : tree.mask) std::printf("%d ", is_ancestor);
    std::printf("\n");
  }
}
