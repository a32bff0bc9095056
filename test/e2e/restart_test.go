// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// restartZone has a name whose answer outlives a restart, and one whose does not.
const restartZone = `$ORIGIN e2e.test.
$TTL 300
@ IN SOA ns hostmaster 1 3600 600 86400 300
@ IN NS ns
ns IN A 192.0.2.53
long IN A 192.0.2.1
short 1 IN A 192.0.2.2
`

// snapshotSettings are of an agent that keeps a snapshot in the folder.
func snapshotSettings(to, folder string) settings {
	return settings{
		to:   []string{to},
		more: fmt.Sprintf("cache: {minTTL: 0s}\nsnapshot: {folder: %s, period: 10s}\n", folder),
	}
}

// loaded is the part of /status on the snapshot that was found at start.
type loaded struct {
	Loaded  string `json:"loaded"`
	Refused string `json:"refused"`
	Answers int    `json:"answers"`
}

func (a *agent) snapshot(t *testing.T) loaded {
	t.Helper()
	var page struct {
		Snapshot loaded `json:"snapshot"`
	}
	a.Status(t, &page)
	return page.Snapshot
}

// TestWarmRestart ends an agent without warning, and its upstream with it. The next agent knows what the one
// before did: what is fresh is as old as it is, what has expired is marked so, and what is not known is no answer.
func TestWarmRestart(t *testing.T) {
	t.Parallel()
	upstream := startNSDAt(t, proctest.FreeAddr(t), restartZone)
	folder := filepath.Join(t.TempDir(), "snapshots")
	asked := fillSnapshot(t, upstream.addr, folder)
	upstream.Kill()
	proctest.Eventually(t, time.Minute, "the short answer has expired", func() bool { return time.Since(asked) > 2*time.Second })

	a := startAgent(t, snapshotSettings(upstream.addr, folder))
	if got := a.snapshot(t); got.Loaded != "loaded" || got.Answers < 2 {
		t.Errorf("/status: %+v", got)
	}
	r, _ := ask(t, a.addr, "long.e2e.test.")
	age := uint32(time.Since(asked) / time.Second)
	switch {
	case len(r.Answer) != 1 || extendedError(r) != -1:
		t.Errorf("the fresh answer: EDE %d\n%s", extendedError(r), r)
	case r.Answer[0].Header().Ttl > 300-age+1 || r.Answer[0].Header().Ttl < 300-age-3:
		t.Errorf("the fresh answer has TTL %d after %d s", r.Answer[0].Header().Ttl, age)
	}
	r, _ = ask(t, a.addr, "short.e2e.test.")
	if len(r.Answer) != 1 || extendedError(r) != int(dns.ExtendedErrorCodeStaleAnswer) || r.Answer[0].Header().Ttl != 30 {
		t.Errorf("the expired answer: EDE %d\n%s", extendedError(r), r)
	}
	if r, _ = ask(t, a.addr, "unknown.e2e.test."); r.Rcode != dns.RcodeServerFailure {
		t.Errorf("what is not known:\n%s", r)
	}
}

// fillSnapshot has an agent learn two answers and kills it once they are in the snapshot, a period later. It returns the time by
// which they were known.
func fillSnapshot(t *testing.T, upstream, folder string) (asked time.Time) {
	t.Helper()
	s := snapshotSettings(upstream, folder)
	s.address, s.port, s.admin = "127.0.0.1", freePort(t), freePort(t)
	config := writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml())
	p := proctest.Start(t, "node-cache to be killed", exec.Command(nodeCache, "agent", "--config", config))
	addr := fmt.Sprintf("%s:%d", s.address, s.port)
	proctest.Eventually(t, time.Minute, "the agent answers", func() bool {
		r, _, err := (&dns.Client{Timeout: time.Second}).Exchange(new(dns.Msg).SetQuestion("long.e2e.test.", dns.TypeA), addr)
		return err == nil && len(r.Answer) == 1
	})
	if r, _ := ask(t, addr, "short.e2e.test."); len(r.Answer) != 1 || extendedError(r) != -1 {
		t.Fatalf("the first answer: EDE %d\n%s", extendedError(r), r)
	}
	asked = time.Now()
	proctest.Eventually(t, time.Minute, "there is a snapshot", func() bool {
		_, err := os.Stat(filepath.Join(folder, "node-cache.snapshot"))
		return err == nil
	})
	p.Kill()
	return asked
}
