// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestSlowNames has an upstream that takes its time for some names, as a resolver does whose own servers are far away. They
// are waited for, whatever is beside it.
func TestSlowNames(t *testing.T) {
	t.Parallel()
	const slow = 2 * time.Second // of 4 s that a client query may take
	for _, tt := range []struct {
		name   string
		beside upstreamtest.Script // nil: no client
	}{
		{name: "alone"},
		{name: "beside one that refuses", beside: upstreamtest.Always(upstreamtest.Action{Rcode: dns.RcodeRefused})},
		{name: "beside one that fails", beside: upstreamtest.Always(upstreamtest.Action{Rcode: dns.RcodeServerFailure})},
		{name: "beside one that is silent", beside: upstreamtest.Always(upstreamtest.Action{Drop: true})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			to := []string{upstreamtest.New(func(q upstreamtest.Query) upstreamtest.Action {
				a := answerAddrInName(q)
				if strings.HasSuffix(q.Name, ".slow.test.") {
					a.Delay = slow
				}
				return a
			}).Listen(t).String()}
			if tt.beside != nil {
				to = append(to, upstreamtest.New(tt.beside).Listen(t).String())
			}
			a := start(t, settings{rest: forwardTo(to...)})
			var clients sync.WaitGroup
			for i := range 5 {
				clients.Go(func() { a.expectAddrInName(t, i, "slow.test", answerTimeout) })
				a.expectAddrInName(t, i, "quick.test", time.Second)
			}
			clients.Wait()
			for i := range 5 { // it is no worse for it
				a.expectAddrInName(t, 10+i, "quick.test", time.Second)
			}
		})
	}
}

// expectAddrInName asks for the name with a number and expects the address that it spells.
func (a *agent) expectAddrInName(t *testing.T, n int, suffix string, limit time.Duration) {
	t.Helper()
	q := new(dns.Msg).SetQuestion(nameOf(n, suffix), dns.TypeA)
	began := time.Now()
	r, err := askOnce(a.settings.host, a.settings.listen, "udp", q, answerTimeout)
	took := time.Since(began)
	if err != nil || addressOf(r) != addressIn(n).String() || took > limit {
		said := fmt.Sprint(err)
		if err == nil {
			said = dns.RcodeToString[r.Rcode]
		}
		t.Errorf("%s: %s after %s, want its address within %s", q.Question[0].Name, said, ms(took), limit)
	}
}
