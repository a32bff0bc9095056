// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

// TestLoopingNameservers checks which nameservers of a resolv.conf are left out because
// a query to them would loop back.
func TestLoopingNameservers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name               string
		listen, nameserver string
		want               bool
	}{
		{"the same address", "127.0.0.1", "127.0.0.1", true},
		{"another loopback address", "127.0.0.1", "127.0.0.2", false},
		{"no address stands for the loopback", "127.0.0.1", "0.0.0.0", true},
		{"no address where the loopback is not ours", "127.0.0.2", "0.0.0.0", false},
		{"no IPv6 address stands for the loopback", "::1", "::", true},
		{"every address, a loopback one", "0.0.0.0", "127.0.0.9", true},
		{"every address, none", "0.0.0.0", "0.0.0.0", true},
		{"every address, another machine's", "0.0.0.0", "192.0.2.1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "resolv.conf")
			assert.NoError(t, os.WriteFile(path, []byte("nameserver "+tt.nameserver+"\n"), 0o600))
			cfg := config.Default(config.Agent)
			cfg.Listen.Addresses, cfg.Listen.Port = []netip.Addr{netip.MustParseAddr(tt.listen)}, 53
			cfg.Forward[0].To = []config.Target{{Kind: config.ResolvConf, Path: path}}
			log := &journal{}
			if _, err := agent.New(agent.Options{Config: &cfg, Log: log}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(log.String(), `own address`); got != tt.want {
				t.Errorf("left out: %t, want %t; log:\n%s", got, tt.want, log.String())
			}
		})
	}
}
