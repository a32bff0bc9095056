// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/proctest"
)

// nodeCache is the path of the program under test.
var nodeCache string

func TestMain(m *testing.M) { os.Exit(proctest.Main(m, &nodeCache)) }

// TestProgramKnowsArguments has the program read the command line of each container and of each probe, up to a last one
// that asks for help in place of doing it.
func TestProgramKnowsArguments(t *testing.T) {
	t.Parallel()
	commands := map[string][]string{}
	add := func(args []string) { commands[strings.Join(args, " ")] = args }
	for _, s := range sources(t) {
		for _, w := range workloads(t, objects(t, s.text)) {
			for _, c := range containers(&w.spec) {
				if c.Command != nil {
					t.Errorf("%s, container %s: a command in place of the image's entrypoint", w.name, c.Name)
				}
				add(c.Args)
				for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe} {
					if p != nil && p.Exec != nil {
						add(p.Exec.Command[1:])
					}
				}
			}
		}
	}
	for line, args := range commands {
		if _, err := run(t.Context(), nil, nodeCache, append(slices.Clone(args), "--help")...); err != nil {
			t.Errorf("node-cache %s: %v", line, err)
		}
	}
	if _, err := run(t.Context(), nil, nodeCache, "agent", "--no-such-flag", "--help"); err == nil {
		t.Error("a flag that is not known is taken, so this test shows nothing")
	}
}

// same compares what a test wants with what it got.
func same[T any](tb testing.TB, what string, want, got T, options ...cmp.Option) {
	tb.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// must ends the test at an error.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
