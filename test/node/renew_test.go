// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestRenewals loads the agent as much as it can take while it renews its lease.
func TestRenewals(t *testing.T) {
	for _, backend := range loadedBackends() {
		t.Run(backend, func(t *testing.T) {
			if _, err := exec.LookPath("dnsperf"); err != nil {
				t.Skip("no dnsperf: apt-get install dnsperf")
			}
			length := proctest.OrdinaryOrSoak(5*time.Second, time.Minute)
			b := newHarness(t, options{backend: backend})
			b.start(t)
			before := b.fallbackQueries()
			var names strings.Builder
			for i := range 1000 {
				fmt.Fprintf(&names, "n%d.renewals.test A\n", i)
			}
			file := filepath.Join(t.TempDir(), "names")
			proctest.WriteFile(t, file, names.String())
			out, err := b.Pods[0].Output(t.Context(), "dnsperf", "-s", agentIPv4.String(), "-d", file,
				"-l", strconv.Itoa(int(length.Seconds())), "-c", "8", "-T", "1", "-q", "200", "-t", "5")
			assert.NoError(t, err)
			sent, lost := dnsperfNumber(t, out, "Queries sent"), dnsperfNumber(t, out, "Queries lost")
			if !strings.Contains(out, "NOERROR "+strconv.Itoa(sent)+" ") || lost != 0 {
				t.Errorf("not all answered:\n%s", out)
			}
			if leaked := b.fallbackQueries() - before; leaked > 0 {
				t.Errorf("%d of %d queries went to the central DNS", leaked, sent)
			}
			proctest.Figure(t, "%d s of renewals at full load, %s: %d lost, %d to the fallback of %s queries", int(length.Seconds()), backend, lost,
				b.fallbackQueries()-before, nodetest.Thousands(sent))
		})
	}
}

// dnsperfNumber reads one of dnsperf's statistics.
func dnsperfNumber(t *testing.T, out, label string) int {
	t.Helper()
	m := regexp.MustCompile(regexp.QuoteMeta(label) + `:\s+(\d+)`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("dnsperf printed no %q:\n%s", label, out)
	}
	n, _ := strconv.Atoi(m[1]) // the pattern matches numbers only
	return n
}
