// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestFederationsUnknown has no topology at first: the log and /status say why there are no aliases.
func TestFederationsUnknown(t *testing.T) {
	t.Setenv("NODE_ZONE", "a")
	t.Setenv("NODE_REGION", "")
	cfg := clusterConfig(t, folder(t), proctest.FreeAddr(t))
	cfg.Cluster.Endpoints, cfg.Cluster.Federations = config.EndpointsAll, []config.Federation{{Name: "myfed", Domain: "example.com."}}
	log := &journal{}
	a, _ := start(t, agent.Options{Config: &cfg, Log: log})
	const name = "web.shop.myfed.svc.cluster.local."
	assert.Equal(t, "without a region", "SERVFAIL", addresses(ask(t, a, "udp", name)))
	proctest.Eventually(t, time.Minute, "the log does not say why", func() bool { return strings.Contains(log.String(), "federations have no aliases") }, log.String)
	s := statusOf(t, a)
	assert.Same(t, "in /status", []status.Federation{{Name: "myfed", Domain: "example.com."}}, s.Cluster.Federated)
	if len(s.Problems) != 1 || s.Problems[0].Where != "cluster.federations" || !strings.Contains(s.Problems[0].Hint, "NODE_REGION") {
		t.Errorf("problems: %+v", s.Problems)
	}
	t.Setenv("NODE_REGION", "east")
	if _, err := a.Reload(cfg, nil); err != nil {
		t.Fatal(err)
	}
	s = statusOf(t, a)
	assert.Same(t, "with a region", []status.Federation{{Name: "myfed", Domain: "example.com.", Suffix: "a.east.example.com."}}, s.Cluster.Federated)
	assert.Equal(t, "problems", 0, len(s.Problems))
}
