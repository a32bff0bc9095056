// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/nodecache/node-cache/internal/proctest"
)

// answerLimit is the time within which a client must have its answer, good or bad: stub resolvers give up at 5 s.
const answerLimit = 4500 * time.Millisecond

// ask sends one query with EDNS and returns the reply and the time it took. No reply within the limit is a failure.
func ask(t *testing.T, server, name string) (*dns.Msg, time.Duration) {
	t.Helper()
	client := dns.Client{Timeout: answerLimit}
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	q.SetEdns0(1232, false)
	r, took, err := client.Exchange(q, server)
	if err != nil {
		t.Fatalf("asking for %s: %v", name, err)
	}
	return r, took
}

// extendedError is the code of the reply's Extended DNS Error (RFC 8914), -1 without one.
func extendedError(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			if ede, ok := option.(*dns.EDNS0_EDE); ok {
				return int(ede.InfoCode)
			}
		}
	}
	return -1
}

// TestAllUpstreamsDead silences or kills every upstream. Cached names stay, others get SERVFAIL with the reason
// before stub resolvers give up, and the first question after the return is answered again.
func TestAllUpstreamsDead(t *testing.T) {
	t.Parallel()
	first, second := startNSD(t), startNSD(t)
	a := startAgent(t, settings{to: []string{first.addr, second.addr}})
	if r, _ := ask(t, a.addr, "host.e2e.test."); r.Rcode != dns.RcodeSuccess {
		t.Fatalf("before: %s", dns.RcodeToString[r.Rcode])
	}
	failing := func(name string) {
		t.Helper()
		r, took := ask(t, a.addr, name)
		if ede := extendedError(r); r.Rcode != dns.RcodeServerFailure || (ede != 22 && ede != 23) || took > answerLimit {
			t.Errorf("%s: %s with extended error %d after %s, want SERVFAIL with 22 or 23 within %s",
				name, dns.RcodeToString[r.Rcode], ede, took, answerLimit)
		}
		// Who waits for the machine to be less busy does not wait each time, and who waits for an upstream does.
		quickest := answerLimit
		for range 3 {
			r, took := ask(t, a.addr, "host.e2e.test.")
			if r.Rcode != dns.RcodeSuccess {
				t.Errorf("a cached name meanwhile: %s", dns.RcodeToString[r.Rcode])
			}
			quickest = min(quickest, took)
		}
		if quickest > 500*time.Millisecond {
			t.Errorf("a cached name meanwhile: after %s at best", quickest)
		}
	}
	for _, s := range []*nameServer{first, second} {
		s.Signal(syscall.SIGSTOP)
	}
	failing("silent.wild.e2e.test.")
	for _, s := range []*nameServer{first, second} {
		s.Signal(syscall.SIGCONT)
	}
	proctest.Eventually(t, 10*time.Second, "names resolve again", func() bool {
		r, _ := ask(t, a.addr, fmt.Sprintf("back%d.wild.e2e.test.", time.Now().UnixNano()))
		return r.Rcode == dns.RcodeSuccess
	})
	for _, s := range []*nameServer{first, second} {
		s.Kill()
	}
	failing("killed.wild.e2e.test.")
	startNSDAt(t, netip.MustParseAddrPort(first.addr), mainZone())
	proctest.Eventually(t, 15*time.Second, "names resolve after a restart, the failed one included", func() bool {
		fresh, _ := ask(t, a.addr, fmt.Sprintf("restart%d.wild.e2e.test.", time.Now().UnixNano()))
		failed, _ := ask(t, a.addr, "killed.wild.e2e.test.")
		return fresh.Rcode == dns.RcodeSuccess && failed.Rcode == dns.RcodeSuccess
	})
}
