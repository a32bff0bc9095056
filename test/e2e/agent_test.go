// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// settings are the parts of a configuration that tests choose.
type settings struct {
	address string   // listen address, 127.0.0.1 when empty
	port    int      // listen port, a free one when 0
	admin   int      // admin port, a free one when 0
	socket  string   // admin.socket; empty: none
	to      []string // upstreams of "."
	more    string   // further sections, as YAML
}

// yaml renders the configuration file.
func (s settings) yaml() string {
	return fmt.Sprintf("listen: {addresses: [%s], port: %d}\nforward: [{zone: \".\", to: [%s]}]\nadmin: {address: 127.0.0.1:%d, socket: %q}\n%s\n",
		s.address, s.port, `"`+strings.Join(s.to, `", "`)+`"`, s.admin, s.socket, s.more)
}

// agent is a running node-cache.
type agent struct {
	*proctest.Agent
	settings settings
	config   string // path of its configuration file
	addr     string // where it answers queries
}

// startAgent runs node-cache with the settings and waits until it is ready. When the test ends, it must still run
// and then end cleanly.
func startAgent(t *testing.T, s settings) *agent {
	t.Helper()
	if s.address == "" {
		s.address = "127.0.0.1"
	}
	if s.port == 0 {
		s.port = freePort(t)
	}
	if s.admin == 0 {
		s.admin = freePort(t)
	}
	return launchFile(t, s, writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), s.yaml()))
}

// launchFile runs node-cache with a configuration file that holds the settings.
func launchFile(t *testing.T, s settings, config string) *agent {
	t.Helper()
	return launch(t, s, exec.Command(nodeCache, "agent", "--config", config), config)
}

// launch starts the agent's command line and waits until the agent is ready.
func launch(t *testing.T, s settings, cmd *exec.Cmd, config string) *agent {
	t.Helper()
	admin := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.admin))
	return &agent{proctest.StartAgent(t, cmd, admin, "/readyz", nil), s, config, fmt.Sprintf("%s:%d", s.address, s.port)}
}

// awaitPage fetches a page of the admin server until it is as wanted. What it shows may be a moment behind what the
// agent does.
func (a *agent) awaitPage(t *testing.T, path, what string, wanted func(page string) bool) {
	t.Helper()
	const limit = time.Minute
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		page, err := a.Page(path)
		if err == nil && wanted(page) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s: %s: %v\n%s", limit, path, what, err, page)
		}
	}
}

// awaitLog waits until the log holds each of the texts. It comes through a pipe, behind what other pages tell.
func (a *agent) awaitLog(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		proctest.Eventually(t, time.Minute, fmt.Sprintf("the log says %q", text), func() bool {
			return strings.Contains(a.Stderr.String(), text)
		})
	}
}

// answerLimit is the time within which a client must have its answer, good or bad: stub resolvers give up at 5 s.
const answerLimit = 4500 * time.Millisecond

// ask sends one query with EDNS and returns the reply and the time it took. No reply within the limit is a failure.
func ask(t *testing.T, server, name string) (*dns.Msg, time.Duration) {
	t.Helper()
	client := dns.Client{Timeout: answerLimit}
	q := new(dns.Msg).SetQuestion(name, dns.TypeA)
	q.SetEdns0(1232, false)
	r, took, err := client.Exchange(q, server)
	if err != nil {
		t.Fatalf("asking for %s: %v", name, err)
	}
	return r, took
}

// extendedError is the code of the reply's Extended DNS Error (RFC 8914), -1 without one.
func extendedError(r *dns.Msg) int {
	if opt := r.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			if ede, ok := option.(*dns.EDNS0_EDE); ok {
				return int(ede.InfoCode)
			}
		}
	}
	return -1
}
