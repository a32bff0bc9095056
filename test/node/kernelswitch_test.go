// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

const switchName = "web.shop.svc.cluster.local."

// A switched is a node whose agent answers hits in the kernel, with what operators do to it.
type switched struct {
	*harness
}

// program runs a command of node-cache on the node.
func (s switched) program(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Node.Output(t.Context(), nodeCache, append(args, "--admin", "unix:"+s.socket)...)
	if err != nil {
		t.Errorf("%v: %v", args, err)
	}
	return out
}

// kernel returns the status of the hits in the kernel.
func (s switched) kernel(t *testing.T) (k status.Kernel) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(s.program(t, "kernel", "status", "-o", "json")), &k))
	return k
}

// ask asks from the pod, and returns how many of n replies came from the process.
func (s switched) ask(t *testing.T, n int) (fromProcess int) {
	t.Helper()
	before := s.replies(t, "zone")
	conn, err := s.Pods[0].Dial(t.Context(), "udp", netip.AddrPortFrom(agentIPv4, 53).String())
	assert.NoError(t, err)
	c := &dns.Conn{Conn: conn}
	defer func() { _ = c.Close() }()
	for range n {
		assert.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		assert.NoError(t, c.WriteMsg(new(dns.Msg).SetQuestion(switchName, dns.TypeA)))
		m, err := c.ReadMsg()
		assert.NoError(t, err)
		if len(m.Answer) != 1 {
			t.Fatalf("got %s", m)
		}
	}
	return s.replies(t, "zone") - before
}

// awaitHits asks until the kernel answers.
func (s switched) awaitHits(t *testing.T, when string) {
	t.Helper()
	const asked = 20
	proctest.Eventually(t, time.Minute, "the kernel answers "+when, func() bool { return s.ask(t, asked) < asked })
}

// awaitAll asks and expects every answer from the process, and this state.
func (s switched) awaitAll(t *testing.T, state string) {
	t.Helper()
	const asked = 20
	if got := s.ask(t, asked); got != asked {
		t.Errorf("%s: the process answered %d of %d queries", state, got, asked)
	}
	if got := s.kernel(t).State; got != state {
		t.Errorf("state %q, want %q", got, state)
	}
}

// reload changes the configuration and waits until it is in use.
func (s switched) reload(t *testing.T, kernel string) {
	t.Helper()
	page := func() (st status.Status) {
		_ = json.Unmarshal([]byte(s.adminPage(t, "/status")), &st)
		return st
	}
	before := page().Config.Generation
	s.writeConfig(t, s.configText()+kernel)
	proctest.Eventually(t, time.Minute, "the configuration is in use", func() bool { return page().Config.Generation > before })
	if need := page().Config.NeedRestart; len(need) > 0 {
		t.Errorf("%s needs a restart for %v", kernel, need)
	}
}

// TestKernelSwitch turns the hits in the kernel off and on, by command and by configuration. Each takes effect with the next query.
func TestKernelSwitch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NoError(t, os.CopyFS(dir, os.DirFS("../../examples/cluster")))
	s := switched{newHarness(t, options{pods: 2, unmanaged: true, socket: proctest.SocketPath(t), extra: "cluster: {resolver: local, manifests: " + dir + "}\n"})}
	s.writeConfig(t, s.configText()+"kernel: {hits: on}\n")
	s.start(t)
	s.awaitHits(t, "at first")
	proctest.Eventually(t, time.Minute, "the hits are counted", func() bool {
		k := s.kernel(t)
		return k.Hits > 0 && k.Answers > 0 && k.Interfaces == 3 // two pods and the upstream host
	})
	proctest.Eventually(t, time.Minute, "the pages name the kernel", func() bool {
		s.ask(t, 3)                                                                                               // the answer has a TTL of 5 s
		page, _ := s.Node.Output(t.Context(), nodeCache, "cache", "get", switchName, "--admin", "unix:"+s.socket) // exit code 3: not in the cache
		why := s.run(t, nodeCache, "query", "--explain", "--server", agentIPv4.String(), switchName)
		return strings.HasSuffix(page, "pods get these types from the kernel: A\n") && strings.Contains(why, "source=zone state=fresh kernel=yes")
	})

	s.program(t, "kernel", "off")
	s.awaitAll(t, "off by `node-cache kernel off`")
	s.program(t, "kernel", "on")
	s.awaitHits(t, "after on")

	s.reload(t, "kernel: {hits: off}\n")
	s.awaitAll(t, status.KernelOffConfigured)
	s.reload(t, "kernel: {hits: auto}\n")
	s.awaitHits(t, "after off and auto")
	s.reload(t, "kernel: {hits: auto}\nlog: {queries: all}\n")
	s.awaitAll(t, "paused: log.queries is all")
	s.reload(t, "kernel: {hits: auto}\n")
	s.awaitHits(t, "after log.queries")

	// The agent has dropped its other capabilities by now.
	assert.NoError(t, s.Node.Do(func() error { return nodetest.AddVeth("late", s.Pods[1], "late", 0) }))
	proctest.Eventually(t, time.Minute, "a later interface has the program", func() bool { return s.kernel(t).Interfaces == 4 })
}
