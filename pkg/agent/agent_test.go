// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// A journal is a log that may be read while it is written.
type journal = proctest.Output

// start runs an agent until the test ends.
func start(t *testing.T, o agent.Options) (a *agent.Agent, stop func()) {
	t.Helper()
	a, err := agent.New(o)
	assert.NoError(t, err)
	assert.NoError(t, a.Listen(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	<-a.Ready()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return a, stop
}

// local is a configuration on loopback with one upstream.
func local(t *testing.T, upstream netip.AddrPort) config.Config {
	t.Helper()
	cfg := config.Default(config.Agent)
	cfg.Listen.Port = proctest.FreeAddr(t).Port()
	cfg.Admin.Address = proctest.FreeAddr(t)
	cfg.Forward = []config.Route{config.DefaultRoute(".", config.Target{Kind: config.Plain, Addr: upstream})}
	return cfg
}

func ask(t *testing.T, a *agent.Agent, network, name string) *dns.Msg {
	t.Helper()
	c := &dns.Client{Net: network, Timeout: 10 * time.Second}
	r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.Addrs()[0].String())
	assert.NoError(t, err)
	return r
}

func statusOf(t *testing.T, a *agent.Agent) status.Status {
	t.Helper()
	_, body := page(t, a, "/status")
	var s status.Status
	assert.NoError(t, json.Unmarshal([]byte(body), &s))
	return s
}

// counted is the status once so many queries are counted: a batch is, after its
// replies were sent.
func counted(t *testing.T, a *agent.Agent, queries uint64) (s status.Status) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "not all queries are counted", func() bool {
		s = statusOf(t, a)
		return s.Queries.Total >= queries
	})
	return s
}

// TestFollowsTheFile edits the file of a running agent: good, bad, and with what
// only a restart changes.
func TestFollowsTheFile(t *testing.T) {
	t.Parallel()
	one := upstreamtest.New(upstreamtest.Zone("www.test. 300 IN A 192.0.2.1"))
	two := upstreamtest.New(upstreamtest.Zone("www.test. 300 IN A 192.0.2.2"))
	cfg := local(t, one.Listen(t))
	path := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text []byte) {
		t.Helper()
		assert.NoError(t, os.WriteFile(path+".tmp", text, 0o600))
		assert.NoError(t, os.Rename(path+".tmp", path))
	}
	text, err := config.Marshal(cfg)
	assert.NoError(t, err)
	write(text)
	log := &journal{}
	a, _ := start(t, agent.Options{Source: configsource.Config{File: path}, Log: log})
	if got := ask(t, a, "udp", "www.test.").Answer[0].(*dns.A).A.String(); got != "192.0.2.1" {
		t.Fatalf("before: %s", got)
	}
	await := func(what string, reached func(status.Config) bool) {
		t.Helper()
		proctest.Eventually(t, time.Minute, what+" is not seen", func() bool { return reached(statusOf(t, a).Config) })
	}

	cfg.Forward[0].To[0].Addr = two.Listen(t)
	cfg.Listen.Port++
	cfg.Admin.Hosts = []string{"dns"}
	cfg.Handover.Socket = "/run/node-cache-without-agent/handover.sock"
	text, err = config.Marshal(cfg)
	assert.NoError(t, err)
	write(text)
	await("the new upstream", func(s status.Config) bool { return s.Generation == 2 && s.LastOK })
	if got := ask(t, a, "udp", "www.test.").Answer[0].(*dns.A).A.String(); got != "192.0.2.2" {
		t.Errorf("afterwards: %s, want the new upstream's answer", got)
	}
	if problems := fmt.Sprint(statusOf(t, a).Problems); !strings.Contains(problems, "a restart is needed for listen.port, admin.hosts, handover;") {
		t.Errorf("the status does not name what needs a restart: %s", problems)
	}

	write([]byte("cache: {size: 1, maxTTL: 1}\nfoo: 1\n"))
	await("the bad file", func(s status.Config) bool { return !s.LastOK && s.Refused == 1 && s.Generation == 2 })
	for _, key := range []string{"cache.size", "cache.maxTTL", "foo"} {
		if !strings.Contains(log.String(), `"key":"`+key+`"`) {
			t.Errorf("the log does not name %s:\n%s", key, log)
		}
	}
	ask(t, a, "tcp", "www.test.")

	write(text)
	await("the good file again", func(s status.Config) bool { return s.LastOK && s.Generation == 3 })
}

// TestListenGivesUp holds that after a socket that cannot be had none stays open.
func TestListenGivesUp(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	cfg := local(t, netip.MustParseAddrPort("192.0.2.53:53"))
	cfg.Admin.Address = taken.Addr().(*net.TCPAddr).AddrPort()
	a, err := agent.New(agent.Options{Config: &cfg, Log: &journal{}})
	assert.NoError(t, err)
	err = a.Listen(t.Context())
	var hint *hint.Error
	if err == nil || !errors.As(err, &hint) || !strings.HasPrefix(hint.Hint, "another program uses the port") {
		t.Errorf("Listen: %v", err)
	}
	again, err := net.ListenPacket("udp", netip.AddrPortFrom(cfg.Listen.Addresses[0], cfg.Listen.Port).String())
	if err != nil {
		t.Errorf("the UDP socket is still open: %v", err)
	} else {
		_ = again.Close()
	}
}

// TestStatusDocumented holds the example that docs/status.md names to the type.
func TestStatusDocumented(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../admin/testdata/status.json")
	assert.NoError(t, err)
	var s status.Status
	decoder := json.NewDecoder(bytes.NewReader(example))
	decoder.DisallowUnknownFields()
	assert.NoError(t, decoder.Decode(&s))
	again, err := json.MarshalIndent(s, "", "  ")
	assert.NoError(t, err)
	if diff := cmp.Diff(strings.TrimSpace(string(example)), string(again)); diff != "" {
		t.Errorf("status.json and status.Status (-documented +type):\n%s", diff)
	}
}
