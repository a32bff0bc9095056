// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// TestWorkload checks the promises that the loads rest on: the same lists each time, hits that the zone has,
// denials that it has not, misses that never repeat.
func TestWorkload(t *testing.T) {
	t.Parallel()
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		if err := newWorkload().write(dir, 1); err != nil {
			t.Fatal(err)
		}
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
	if err := parser.Err(); err != nil {
		t.Fatalf("the zone: %v", err)
	}
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
	if got := len(unique(lists["miss"])); got != missLines(1) {
		t.Errorf("%d different misses, want %d", got, missLines(1))
	}
	if got := len(unique(lists["nx"])); got != externals {
		t.Errorf("%d different denials, want %d", got, externals)
	}
}

// TestClusterLists checks that the manifests have every service that the hits of the zone ask for, and that no denial
// asks for one of them.
func TestClusterLists(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := newWorkload().write(dir, 1); err != nil {
		t.Fatal(err)
	}
	services := make(map[string]bool)
	addresses := make(map[string]bool)
	metadata := regexp.MustCompile(`kind: Service\nmetadata: \{name: (\S+), namespace: (\S+)\}\nspec:\n  clusterIP: (\S+)\n`)
	for n := range namespaces {
		text, err := os.ReadFile(filepath.Join(dir, manifestsDir, fmt.Sprintf("ns-%d.yaml", n)))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range metadata.FindAllStringSubmatch(string(text), -1) {
			services[m[1]+"."+m[2]+".svc.cluster.local A"] = true
			addresses[m[3]] = true
		}
	}
	if len(services) != hosts || len(addresses) != hosts || !services[zoneHost+" A"] {
		t.Errorf("%d services with %d addresses, want %d of each and %s among them", len(services), len(addresses), hosts, zoneHost)
	}
	for _, line := range readLines(t, dir, "cluster") {
		if !services[line] {
			t.Fatalf("cluster %q: no such service", line)
		}
	}
	absent := readLines(t, dir, "absent")
	for _, line := range absent {
		if services[line] || !strings.HasSuffix(line, ".cluster.local A") {
			t.Fatalf("absent %q: want a name in the cluster domain that no service has", line)
		}
	}
	if got := len(unique(absent)); got != 3*externals {
		t.Errorf("%d different denials, want %d", got, 3*externals)
	}
}

func TestHitsFollowZipf(t *testing.T) {
	t.Parallel()
	count := make(map[string]int)
	w := newWorkload()
	for _, name := range w.hits() {
		count[name]++
	}
	// H(1000) is 7.485: the first name has 13.4 % of the queries and the tenth a tenth of that.
	for rank, want := range map[int]float64{1: 2672, 2: 1336, 10: 267} {
		if got := float64(count[w.names[rank-1]]); got < 0.8*want || got > 1.2*want {
			t.Errorf("rank %d has %v of %d queries, want about %v", rank, got, zipfLines, want)
		}
	}
}

func readLines(t *testing.T, dir, name string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}
