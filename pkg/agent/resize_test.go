// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestResizeByReload changes the cache's size: nothing that fits is asked for again,
// and a configuration that is refused leaves size and answers as they are.
func TestResizeByReload(t *testing.T) {
	t.Parallel()
	const names = 200
	up := upstreamtest.New(upstreamtest.Zone(zoneOf(names)...))
	cfg := local(t, up.Listen(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	asked := func() (queries int) {
		for i := range names {
			ask(t, a, "udp", nameOf(i))
		}
		return len(up.Queries())
	}
	if n := asked(); n != names {
		t.Fatalf("%d queries upstream for %d names", n, names)
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
		changed := cfg
		changed.Cache.Size = step.size
		if step.refuse {
			changed.Cluster.Resolver = clusterConfig(t, t.TempDir(), up.Listen(t)).Cluster.Resolver
			changed.Cluster.Manifests = filepath.Join(t.TempDir(), "none")
		}
		a.Reload(changed, nil)
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
		if n := asked(); n != names {
			t.Errorf("%s: %d more queries upstream", step.what, n-names)
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
