// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
)

// A subject is a question whose right answer changes. Its states have numbers from 1.
type subject struct {
	question dns.Question
	edns     bool
	change   func(state int)
	is       func(state int, m *dns.Msg) bool

	begun atomic.Int64 // the newest state; the agent may have it
	known atomic.Int64 // the newest state that the process has answered
}

// judge reports whether the answer is of a state that the agent had between two moments.
func (s *subject) judge(m *dns.Msg, from, to int64) bool {
	for state := from; state <= to; state++ {
		if s.is(int(state), m) {
			return true
		}
	}
	return false
}

// A truth is a node whose agent answers hits in the kernel, and pods that ask for subjects all the time.
type truth struct {
	*nodetest.Network
	agent   *proctest.Process
	api     *watchtest.Server
	config  string    // path
	socket  string    // admin.socket
	session *dns.Conn // to the process: the kernel answers nothing over TCP

	quit  chan struct{}
	tasks sync.WaitGroup
	asked atomic.Int64
	lost  atomic.Int64

	mu    sync.Mutex // guards wrong
	wrong []string
}

// startTruth starts an agent whose hits the kernel answers, with the rest of its configuration, where %s is a kubeconfig.
func startTruth(t *testing.T, rest string) *truth {
	t.Helper()
	n := &truth{Network: nodetest.Start(t, nodetest.Options{Pods: 2}), api: watchtest.New(time.Now), quit: make(chan struct{}), socket: proctest.SocketPath(t)}
	for _, addr := range []netip.Addr{agentIPv4, agentIPv6} {
		assert.NoError(t, n.Node.AddAddress(addr))
	}
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	proctest.WriteFile(t, kubeconfig, strings.ReplaceAll(plainKubeconfig, "URL", "http://"+n.serveAPI(t)))
	n.config = filepath.Join(dir, "node-cache.yaml")
	n.writeConfig(t, strings.ReplaceAll("kernel: {hits: on}\n"+rest, "%s", kubeconfig))
	n.agent = proctest.Start(t, "the agent", n.Node.Command(t.Context(), nodeCache, "agent", "--config", n.config))
	return n
}

const plainKubeconfig = `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "URL"}}],
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}`

// serveAPI serves the API on the node.
func (n *truth) serveAPI(t *testing.T) (addr string) {
	t.Helper()
	var l net.Listener
	assert.NoError(t, n.Node.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		return err
	}))
	server := &http.Server{Handler: n.api} //nolint:gosec // the agent is no attacker
	n.tasks.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().String()
}

func (n *truth) writeConfig(t *testing.T, rest string) {
	t.Helper()
	proctest.WriteFile(t, n.config, fmt.Sprintf("listen: {addresses: [%s, %q], port: 53}\nadmin: {address: \"127.0.0.1:9253\", socket: %q}\n%s",
		agentIPv4, agentIPv6, n.socket, rest))
}

// dialProcess waits until the agent listens.
func (n *truth) dialProcess(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, time.Minute, "the agent listens", func() bool {
		conn, err := n.Node.Dial(t.Context(), "tcp", netip.AddrPortFrom(agentIPv4, 53).String())
		if err == nil {
			n.session = &dns.Conn{Conn: conn}
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err == nil
	}, func() string { return n.agent.Tail(5) })
}

// next has the answer of a subject change, and waits until the process answers it. From then on no answer may be older.
func (n *truth) next(t *testing.T, s *subject) {
	t.Helper()
	state := s.begun.Add(1)
	s.change(int(state))
	n.awaitProcess(t, s)
	s.known.Store(state)
	n.mu.Lock()
	wrong := len(n.wrong) > 0
	n.mu.Unlock()
	if wrong {
		n.stop(t)
		t.FailNow()
	}
}

// awaitProcess waits until the process answers with the newest state.
func (n *truth) awaitProcess(t *testing.T, s *subject) {
	t.Helper()
	var last *dns.Msg
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		m, err := exchange(n.session, s.query(1))
		assert.NoError(t, err)
		if s.is(int(s.begun.Load()), m) {
			return
		}
		last = m
	}
	t.Fatalf("%s has no state %d: %v", s.question.Name, s.begun.Load(), last)
}

func (s *subject) query(id uint16) *dns.Msg {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Id: id, RecursionDesired: true}, Question: []dns.Question{s.question}}
	if s.edns {
		m.SetEdns0(1232, false)
	}
	return m
}

func exchange(conn *dns.Conn, q *dns.Msg) (*dns.Msg, error) {
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	if err := conn.WriteMsg(q); err != nil {
		return nil, err
	}
	for {
		m, err := conn.ReadMsg()
		if err != nil || m.Id == q.Id {
			return m, err
		}
	}
}

// ask has every pod ask for the subjects as fast as it can, over both families, until stop.
func (n *truth) ask(t *testing.T, subjects []*subject) {
	t.Helper()
	for _, pod := range n.Pods {
		for _, addr := range []netip.Addr{agentIPv4, agentIPv6} {
			conn, err := pod.Dial(t.Context(), "udp", netip.AddrPortFrom(addr, 53).String())
			assert.NoError(t, err)
			n.tasks.Go(func() {
				defer func() { _ = conn.Close() }()
				n.askAll(&dns.Conn{Conn: conn}, subjects)
			})
		}
	}
}

func (n *truth) askAll(conn *dns.Conn, subjects []*subject) {
	for i := 0; ; i++ {
		select {
		case <-n.quit:
			return
		default:
		}
		s := subjects[i%len(subjects)]
		from := s.known.Load()
		m, err := exchange(conn, s.query(uint16(i)))
		n.asked.Add(1)
		if err != nil {
			n.lost.Add(1)
			continue
		}
		if to := s.begun.Load(); !s.judge(m, from, to) {
			n.mu.Lock()
			n.wrong = append(n.wrong, fmt.Sprintf("%s: not of the states %d to %d:\n%s", s.question.Name, from, to, m))
			n.mu.Unlock()
		}
	}
}

// stop ends the questions, and reports wrong answers.
func (n *truth) stop(t *testing.T) {
	t.Helper()
	close(n.quit)
	sources := n.responses(t)
	all := sources["kernel"] + sources["zone"] + sources["cache"]
	t.Logf("%d queries, %d lost, answers by source: %v; %.1f %% of the hits in the kernel", n.asked.Load(), n.lost.Load(), sources, 100*sources["kernel"]/all)
	if sources["kernel"] < all/2 {
		t.Error("the kernel has answered less than half of the hits")
	}
	if n.lost.Load() > 0 {
		t.Errorf("%d queries lost", n.lost.Load())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, w := range n.wrong {
		if i == 5 {
			t.Errorf("and %d more", len(n.wrong)-i)
			break
		}
		t.Error(w)
	}
}

// responses are the agent's answers by source.
func (n *truth) responses(t *testing.T) map[string]float64 {
	t.Helper()
	time.Sleep(1200 * time.Millisecond) // the agent reads the kernel's counters once a second
	counts := map[string]float64{}
	for _, found := range regexp.MustCompile(`responses_total\{.*source="(\w+)".*\} (\S+)`).FindAllStringSubmatch(n.admin(t, "GET", "/metrics"), -1) {
		count, err := strconv.ParseFloat(found[2], 64)
		assert.NoError(t, err)
		if count > 0 {
			counts[found[1]] += count
		}
	}
	return counts
}

// metric is the value of a series without labels.
func (n *truth) metric(t *testing.T, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\w*` + name + ` (\S+)$`).FindStringSubmatch(n.admin(t, "GET", "/metrics"))
	if found == nil {
		t.Fatalf("no series %s", name)
	}
	value, err := strconv.ParseFloat(found[1], 64)
	assert.NoError(t, err)
	return value
}

// admin asks the agent's admin server.
func (n *truth) admin(t *testing.T, method, path string) string {
	t.Helper()
	body, err := proctest.OverSocket(t.Context(), n.socket, method, path)
	assert.NoError(t, err)
	return body
}
