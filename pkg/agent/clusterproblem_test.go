// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
)

// TestSourceProblems has sources that no agent can start with. Each error names the cause and the remedy.
func TestSourceProblems(t *testing.T) {
	t.Parallel()
	garbage := filepath.Join(t.TempDir(), "garbage")
	assert.NoError(t, os.WriteFile(garbage, []byte("{"), 0o600))
	for _, tt := range []struct {
		name       string
		change     func(c *config.Cluster)
		want, hint string // beginnings
	}{
		{
			name: "a file for a folder", change: func(c *config.Cluster) { c.Manifests = garbage },
			want: "cluster.manifests: reading manifests: ", hint: "set a folder",
		},
		{
			name: "garbage for a kubeconfig", change: func(c *config.Cluster) { c.Kubeconfig = garbage },
			want: "cluster: reading kubeconfig " + garbage + ": ", hint: "fix the kubeconfig",
		},
		{
			name: "no kubeconfig there", change: func(c *config.Cluster) { c.Kubeconfig = garbage + ".absent" },
			want: "cluster: reading kubeconfig " + garbage + ".absent: no such file", hint: "set a kubeconfig",
		},
		{
			name: "neither", change: func(*config.Cluster) {},
			want: "cluster: no kubeconfig is set", hint: "set cluster.kubeconfig",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := local(t, netip.MustParseAddrPort("127.0.0.1:1"))
			cfg.Cluster.Resolver = config.ResolverLocal
			tt.change(&cfg.Cluster)
			_, err := agent.New(agent.Options{Config: &cfg, Log: &journal{}})
			var problem *hint.Error
			if !errors.As(err, &problem) {
				t.Fatalf("New: %v, want an error with a hint", err)
			}
			if !strings.HasPrefix(err.Error(), tt.want) || !strings.HasPrefix(problem.Hint, tt.hint) {
				t.Errorf("%q, hint %q; want %q, hint %q", err, problem.Hint, tt.want, tt.hint)
			}
		})
	}
}
