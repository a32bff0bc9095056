// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
)

// TestUsage counts the queries of a pod, and of clients without one.
func TestUsage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(t, "www.test. 300 IN A 192.0.2.1")
		u.mangle = func(m *dns.Msg) {
			time.Sleep(time.Second)
			switch m.Question[0].Name {
			case "bad.test.":
				m.Rcode = dns.RcodeServerFailure
			case "www.test.":
			default:
				m.Rcode = dns.RcodeNameError
			}
		}
		p := plan(t, u)
		p.Pods, p.Cluster = pods.NewIndex(time.Minute, nil), []byte("\x07cluster\x05local\x00")
		c, other := newClient(newResolver(t, p), false), newClient6(newResolver(t, p))
		p.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{c.from.Addr.Addr()}})
		for _, name := range []string{"www.test.", "www.test.", "WWW.test.", "bad.test.", "gone.test.", "a.Cluster.Local.", "a.cluster.local.", "acluster.local.", "cluster.local."} {
			c.exchange(t, pack(t, question(name, dns.TypeA)))
		}
		other.exchange(t, pack(t, question("www.test.", dns.TypeA)))
		rows, unknown, _ := p.Pods.Usage(time.Now())
		assert.Equal(t, "pods", 1, len(rows))
		want := pods.Counts{pods.FromMemory: 2, pods.FromUpstream: 6, pods.Failed: 1, pods.Denied: 5, pods.Searched: 3, pods.Bytes: 308, pods.Waited: 7_000_000}
		assert.Same(t, rows[0].String(), want, rows[0].Counts)
		assert.Equal(t, "queries", 9, rows[0].Queries())
		assert.Same(t, "clients without a pod", pods.Counts{pods.FromMemory: 1, pods.Bytes: 42}, unknown)
		names := p.Pods.Names()
		assert.Equal(t, "names", 6, len(names))
		assert.Same(t, "the first", "\x03www\x04test\x00", string(names[0].Name))
		assert.Same(t, "its counts", pods.Counts{pods.FromMemory: 3, pods.FromUpstream: 1, pods.Bytes: 168, pods.Waited: 1_000_000}, names[0].Counts)
	})
}
