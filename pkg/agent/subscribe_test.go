// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// subscribing returns an agent that asks central, with push.
func subscribing(t *testing.T, central ...netip.AddrPort) *agent.Agent {
	t.Helper()
	cfg := local(t, upstreamtest.New(upstreamtest.Zone("www.example.com. 30 IN A 192.0.2.1")).Listen(t))
	cfg.Cluster.Resolver = config.ResolverCentral
	cfg.Cluster.Central.Addresses = central
	cfg.Cluster.Central.Push = true
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	return a
}

func pushOf(t *testing.T, a *agent.Agent) *subscribe.Stats {
	t.Helper()
	return statusOf(t, a).Cluster.Central.Push
}

// awaitSession waits until a server reports changes.
func awaitSession(t *testing.T, a *agent.Agent) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "no session", func() bool { return pushOf(t, a).Server != "" })
}

// explanation returns how the agent answers a name.
func explanation(t *testing.T, a *agent.Agent, name string) string {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionExplain})
	r, err := dns.Exchange(m, a.Addrs()[0].String())
	assert.NoError(t, err)
	for _, option := range r.IsEdns0().Option {
		if local, ok := option.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionExplain {
			return string(local.Data)
		}
	}
	return ""
}

// TestSubscribe has an agent subscribe to what it asks a resolver for. TTLs are one second.
func TestSubscribe(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	putWeb(t, dir, "10.96.0.7")
	cfg := pushConfig(t, dir)
	cfg.Cluster.TTL = time.Second
	central, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	a := subscribing(t, central.Addrs()[0])
	awaitSession(t, a)

	assert.Same(t, "first answer", "10.96.0.7", addresses(ask(t, a, "udp", web)))
	first := pushOf(t, a)
	if first.Asked != 1 || first.Kept != 1 || first.Names != 1 {
		t.Fatalf("after the first answer: %+v", first)
	}
	since := time.Now()
	proctest.Eventually(t, time.Minute, "the answer is not kept", func() bool {
		r := ask(t, a, "udp", web)
		if addresses(r) != "10.96.0.7" || r.Answer[0].Header().Ttl != 1 {
			t.Fatalf("after %s: %s", time.Since(since), r)
		}
		return time.Since(since) > 7*time.Second
	})
	assert.Same(t, "questions for a name that is kept", uint64(1), pushOf(t, a).Asked)

	assert.Same(t, "kept in its explanation", true, strings.Contains(explanation(t, a, web), "kept=push"))

	putWeb(t, dir, "10.96.0.8")
	awaitWeb(t, a, "10.96.0.8")
	assert.Same(t, "questions after a change", uint64(2), pushOf(t, a).Asked)
	assert.NoError(t, os.Remove(filepath.Join(dir, "web.yaml")))
	proctest.Eventually(t, time.Minute, "web is not removed", func() bool { return ask(t, a, "udp", web).Rcode == dns.RcodeNameError })
	putWeb(t, dir, "10.96.0.9")
	awaitWeb(t, a, "10.96.0.9")
	last := pushOf(t, a)
	if last.Asked != 4 || last.Kept != 4 || last.Refused != 0 || last.Late != 0 {
		t.Errorf("after three changes: %+v", last)
	}
}

// TestSubscribeIdle has no name asked for until the session ends, after 15 s.
func TestSubscribeIdle(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	putWeb(t, dir, "10.96.0.7")
	cfg := pushConfig(t, dir)
	central, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	a := subscribing(t, central.Addrs()[0])
	awaitSession(t, a)
	proctest.Eventually(t, time.Minute, "the session is not idle", func() bool {
		st := pushOf(t, a)
		return st.Idle && st.Server == ""
	})
	assert.Same(t, "answer", "10.96.0.7", addresses(ask(t, a, "udp", web)))
	awaitSession(t, a)
	assert.Same(t, "idle", false, pushOf(t, a).Idle)
}

// TestSubscribeNoPush asks a central resolver that does not know of push.
func TestSubscribeNoPush(t *testing.T) {
	t.Parallel()
	central := upstreamtest.New(webAt("10.96.0.7"))
	a := subscribing(t, central.Listen(t))
	assert.Same(t, "answer", "10.96.0.7", addresses(ask(t, a, "udp", web)))
	proctest.Eventually(t, time.Minute, "/status does not say why", func() bool {
		st := pushOf(t, a)
		return st.Server == "" && !st.Idle && strings.HasSuffix(st.Why, subscribe.NoPush)
	})
	assert.Same(t, "another answer", "10.96.0.7", addresses(ask(t, a, "udp", others()[0])))
}
