// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestWorkload checks the promises that the loads rest on: the same lists each time, hits that the zone has,
// denials that it has not, misses that never repeat.
func TestWorkload(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		assert.NoError(t, writeWorkload(dir, 1))
	}
	lists := make(map[string][]string)
	for _, name := range []string{"zone", "hit", "nx", "warm", "miss"} {
		first, second := readLines(t, dirs[0], name), readLines(t, dirs[1], name)
		if !cmp.Equal(first, second) {
			t.Errorf("%s differs between two runs", name)
		}
		lists[name] = first
	}
	zone := make(map[string]bool)
	parser := dns.NewZoneParser(strings.NewReader(strings.Join(lists["zone"], "\n")+"\n"), "", "")
	for rr, ok := parser.Next(); ok; rr, ok = parser.Next() {
		zone[rr.Header().Name] = true
	}
	assert.NoError(t, parser.Err())
	warm := make(map[string]bool)
	for _, line := range lists["warm"] {
		warm[line] = true
	}
	for _, line := range lists["hit"] {
		if name := strings.TrimSuffix(line, " A") + "."; !zone[name] || !warm[line] {
			t.Fatalf("hit %q: in the zone %t, warmed %t", line, zone[name], warm[line])
		}
	}
	for _, line := range lists["nx"] {
		if name := strings.TrimSuffix(line, " A") + "."; zone[name] || !warm[line] || strings.HasSuffix(name, "miss.bench.test.") {
			t.Fatalf("denial %q: in the zone %t, warmed %t", line, zone[name], warm[line])
		}
	}
	assert.Equal(t, "different misses", missLines(1), distinct(lists["miss"]))
	assert.Equal(t, "different denials", externals, distinct(lists["nx"]))
}

func distinct(lines []string) int { return len(slices.Compact(slices.Sorted(slices.Values(lines)))) }

func readLines(t *testing.T, dir, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	assert.NoError(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
