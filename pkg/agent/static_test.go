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

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// TestStaticByReload has an agent answer from a hosts file, follow it, and change to other hosts, rules and templates by
// reloads: one that leaves the hosts as they are leaves what was read of them.
func TestStaticByReload(t *testing.T) {
	t.Parallel()
	up := upstreamtest.New(upstreamtest.Zone(zoneOf(2)...))
	cfg := local(t, up.Listen(t))
	path := filepath.Join(t.TempDir(), "hosts")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("192.0.2.1 one.hosts\n")
	cfg.Hosts = config.Hosts{Files: []string{path}, TTL: 30 * time.Second}
	a, _ := start(t, agent.Options{Config: &cfg, Log: &journal{}})
	says := func(name string) string {
		m := ask(t, a, "udp", name)
		var data []string
		for _, rr := range m.Answer {
			data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		return dns.RcodeToString[m.Rcode] + " " + strings.Join(data, " ")
	}
	expect := func(name, want string) {
		t.Helper()
		if got := says(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	expect("one.hosts.", "NOERROR 192.0.2.1")
	write("192.0.2.2 one.hosts\n")
	eventually(t, "the file is not followed", func() bool { return says("one.hosts.") == "NOERROR 192.0.2.2" })

	same := cfg
	same.Cache.NegativeTTL = 7 * time.Second
	same.Rewrite = []config.Rewrite{{Kind: config.RewriteExact, From: "other.hosts", To: "one.hosts"}}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	a.Reload(same, nil)
	expect("one.hosts.", "NOERROR 192.0.2.2")
	expect("other.hosts.", "NOERROR 192.0.2.2")

	made := same
	made.Templates = []config.Template{{Zone: "made.", Answer: []string{"{{ .Name }} 60 IN A 192.0.2.4"}}}
	a.Reload(made, nil)
	expect("one.hosts.", "NOERROR 192.0.2.2")
	expect("x.made.", "NOERROR 192.0.2.4")
	write("192.0.2.9 one.hosts\n")
	eventually(t, "the file is not followed by what took it over", func() bool { return says("one.hosts.") == "NOERROR 192.0.2.9" })

	other := cfg
	other.Hosts = config.Hosts{TTL: time.Second, Names: []config.Host{{Name: "one.hosts.", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.3")}}}}
	other.Templates = []config.Template{{Zone: "made.", Answer: []string{"{{ .Name }} 60 IN A 192.0.2.4"}}}
	a.Reload(other, nil)
	expect("one.hosts.", "NOERROR 192.0.2.3")
	expect("x.made.", "NOERROR 192.0.2.4")

	bad := other
	bad.Templates = []config.Template{{Zone: "made.", Match: []string{"("}}}
	a.Reload(bad, nil)
	if status(t, a).Config.LastOK {
		t.Error("a template that cannot be is taken")
	}
	expect("x.made.", "NOERROR 192.0.2.4")
	if got := status(t, a).Queries.BySource["static"]; got < 6 {
		t.Errorf("%d counted as static", got)
	}
}
