// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestResizeByReload changes the cache's size: nothing that fits is asked for again,
// and a configuration that is refused leaves size and answers as they are.
func TestResizeByReload(t *testing.T) {
	t.Parallel()
	const names = 200
	list := make([]string, names)
	for i := range list {
		list[i] = nameOf(i)
	}
	up := upstreamtest.New(numbered(time.Hour, list...))
	cfg := local(t, up.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	last := map[string]string{}
	changed := func() (anew int) {
		for _, name := range list {
			got := addresses(ask(t, a, "udp", name))
			if last[name] != got {
				anew++
			}
			last[name] = got
		}
		return anew
	}
	if n := changed(); n != names {
		t.Fatalf("%d answers for %d names", n, names)
	}
	for _, step := range []struct {
		what   string
		size   int64
		refuse bool
	}{
		{what: "larger", size: 128 << 20},
		{what: "refused, smaller", size: 1 << 20, refuse: true},
		{what: "smaller", size: 1 << 20},
		{what: "refused, larger", size: 256 << 20, refuse: true},
		{what: "as at first", size: 64 << 20},
	} {
		before := statusOf(t, a).Cache.Capacity
		next := cfg
		next.Cache.Size = step.size
		if step.refuse {
			next.Cluster.Resolver = clusterConfig(t, t.TempDir(), up.Listen(t)).Cluster.Resolver
			next.Cluster.Manifests = filepath.Join(t.TempDir(), "none")
		}
		_, err := a.Reload(next, nil)
		s := statusOf(t, a)
		if (err == nil) == step.refuse {
			t.Errorf("%s: applied %t: %v", step.what, err == nil, err)
		}
		low, high := step.size*9/10, step.size
		if step.refuse {
			low, high = before, before
		}
		if got := s.Cache.Capacity; got < low || got > high {
			t.Errorf("%s: capacity %d, want %d to %d", step.what, got, low, high)
		}
		if n := changed(); n > 0 {
			t.Errorf("%s: %d names were asked for anew", step.what, n)
		}
	}
}

// TestTemplatesRefused reloads templates that a configuration file could not have.
func TestTemplatesRefused(t *testing.T) {
	t.Parallel()
	cfg := local(t, upstreamtest.New(upstreamtest.Zone()).Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	cfg.Templates = []config.Template{{Zone: "made.", Match: []string{"("}}}
	if _, err := a.Reload(cfg, nil); err == nil {
		t.Error("a template with an invalid expression is taken")
	}
}

func nameOf(i int) string { return fmt.Sprintf("n%d.example.", i) }

func zoneOf(names int) (records []string) {
	for i := range names {
		records = append(records, fmt.Sprintf("%s 3600 IN A 192.0.2.%d", nameOf(i), i%250+1))
	}
	return records
}

// numbered answers each query for one of the names by another address: an answer shows whether it was asked for anew. How
// many queries came would not: one that is not answered in time is sent once more.
func numbered(ttl time.Duration, names ...string) upstreamtest.Script {
	var number atomic.Uint32
	return func(q upstreamtest.Query) upstreamtest.Action {
		if !slices.Contains(names, q.Name) {
			return upstreamtest.Action{Rcode: dns.RcodeNameError}
		}
		n := number.Add(1)
		addr := netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		return upstreamtest.Action{Records: []string{fmt.Sprintf("%s %d IN A %s", q.Name, int(ttl.Seconds()), addr)}}
	}
}
