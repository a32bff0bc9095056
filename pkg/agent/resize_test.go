// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/agent"
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
	told := map[string]string{}
	changed := func() (anew int) {
		for _, name := range list {
			got := addresses(ask(t, a, "udp", name))
			if told[name] != got {
				anew++
			}
			told[name] = got
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
		before := status(t, a).Cache.Capacity
		next := cfg
		next.Cache.Size = step.size
		if step.refuse {
			next.Cluster.Resolver = clusterConfig(t, t.TempDir(), up.Listen(t)).Cluster.Resolver
			next.Cluster.Manifests = filepath.Join(t.TempDir(), "none")
		}
		a.Reload(next, nil)
		s := status(t, a)
		if s.Config.LastOK == step.refuse {
			t.Errorf("%s: applied %t: %s", step.what, s.Config.LastOK, s.Config.LastError)
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

func nameOf(i int) string { return fmt.Sprintf("n%d.example.", i) }

func zoneOf(names int) (records []string) {
	for i := range names {
		records = append(records, fmt.Sprintf("%s 3600 IN A 192.0.2.%d", nameOf(i), i%250+1))
	}
	return records
}
