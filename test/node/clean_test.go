// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestStopRestoresNode starts and stops the agent repeatedly, and compares the node with what it was.
func TestStopRestoresNode(t *testing.T) {
	t.Parallel()
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			b := newHarness(t, options{backend: backend, onExit: "remove", lease: time.Second})
			before := b.nodeState(t)
			times := proctest.OrdinaryOrSoak(2, 100)
			for i := range times {
				if a := b.start(t); i%2 == 0 {
					a.Signal(syscall.SIGTERM)
					if err := a.Wait(t, time.Minute); err != nil {
						t.Fatalf("the agent ended with %v", err)
					}
				} else {
					a.Kill()
					if out := b.run(t, nodeCache, "cleanup", "--config", b.config, "-o", "json"); !strings.Contains(out, `"removed": [`) {
						t.Errorf("cleanup: %s", out)
					}
				}
				if diff := cmp.Diff(before, b.nodeState(t)); diff != "" {
					t.Fatalf("after %d times the node is not as it was (-before +after):\n%s", i+1, diff)
				}
			}
			proctest.Figure(t, "stopped, or killed and cleaned up, %s: the node is as before %d of %d times", backend, times, times)
		})
	}
}

// nodeState is what of the node an agent could have changed.
func (b *harness) nodeState(t *testing.T) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, command := range []string{
		"nft list ruleset", "iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save",
		"ip addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ipset list",
	} {
		words := strings.Fields(command)
		// Times and the counters of built-in chains show traffic, not rules.
		text := regexp.MustCompile(`(?m)^#.*\n| \[\d+:\d+\]$|packets \d+ bytes \d+`).ReplaceAllString(b.run(t, words[0], words[1:]...), "")
		state[command] = fmt.Sprint(text)
	}
	return state
}
