// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// settings are the parts of a configuration that tests choose.
type settings struct {
	command string         // agent when empty
	addr    netip.AddrPort // where it listens; a spare loopback address when it is zero
	root    netip.AddrPort // upstream of "."; one that no process listens at when it is zero
	forward []string       // more routes, in flow style
	cluster []string       // lines of the section
	more    string         // another section, in flow style
	queries string         // log.queries; off when empty
	env     []string       // added to the environment
	socket  string         // admin.socket; empty: none

	admin netip.AddrPort
}

// yaml renders the configuration file.
func (s *settings) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen: {addresses: [%q], port: %d}\nadmin: {address: %q, socket: %q}\nlog: {format: text, queries: %s}\n",
		s.addr.Addr(), s.addr.Port(), s.admin, s.socket, cmp.Or(s.queries, "\"off\""))
	fmt.Fprintf(&b, "forward:\n- {zone: \".\", to: [%q]}\n", s.root)
	for _, route := range s.forward {
		fmt.Fprintf(&b, "- %s\n", route)
	}
	b.WriteString(s.more + "\ncluster:\n")
	for _, line := range s.cluster {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	return b.String()
}

// kubeconfig is the line of the cluster section.
func kubeconfig(path string) string { return fmt.Sprintf("kubeconfig: %q", path) }

// local are the lines of the cluster section with a resolver in the process itself.
func local(lines ...string) []string { return append([]string{"resolver: local"}, lines...) }

// central is the line of the cluster section with the address of a central resolver.
func central(addr netip.AddrPort) string { return fmt.Sprintf("central: {addresses: [%q]}", addr) }

// node is a running node-cache, an agent or a resolver.
type node struct {
	*proctest.Agent
	settings settings
	config   string // path of its configuration file
}

// startNode runs node-cache until the test ends, when it must still run and then end cleanly. It returns once the
// admin server answers, in sync or not.
func startNode(t *testing.T, s settings) *node {
	t.Helper()
	if s.command == "" {
		s.command = "agent"
	}
	if !s.addr.IsValid() {
		s.addr = proctest.FreeAddr(t)
	}
	if !s.root.IsValid() {
		s.root = proctest.FreeAddr(t)
	}
	s.admin = proctest.FreeAddr(t)
	n := &node{settings: s, config: filepath.Join(t.TempDir(), "config.yaml")}
	n.write(t)
	n.launch(t, "--config", n.config)
	return n
}

// launch runs node-cache with its flags.
func (n *node) launch(t *testing.T, flags ...string) {
	t.Helper()
	cmd := exec.Command(nodeCache, append([]string{n.settings.command}, flags...)...)
	cmd.Env = append(os.Environ(), n.settings.env...)
	n.Agent = proctest.StartAgent(t, cmd, n.settings.admin, "/livez", nil)
}

// startReady is startNode with a wait for the cluster zone.
func startReady(t *testing.T, s settings) *node {
	t.Helper()
	n := startNode(t, s)
	n.awaitReady(t)
	return n
}

func (n *node) awaitReady(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "node-cache is ready", n.ready)
}

func (n *node) ready() bool {
	_, err := n.Page("/readyz")
	return err == nil
}

// write puts the settings into the configuration file, as an editor that renames does.
func (n *node) write(t *testing.T) {
	t.Helper()
	proctest.WriteFile(t, n.config, n.settings.yaml())
}

// status is what tests read of /status.
type status struct {
	Problems []problem
	Etcd     struct{ Reads int }
	Config   struct {
		Generation, Refused int
		LastOk              bool
		LastError           string
	}
	Queries struct {
		Total    int
		BySource map[string]int
	}
	Cluster struct {
		InSync           bool
		Requests         int
		Kinds            []kindStatus
		ManifestProblems []struct{ File string }
		Central          struct {
			Endpoints []struct {
				Address         string
				Requests        int
				Far, LastResort bool
			}
			Push *subscribe.Stats
		}
	}
}

type problem struct{ Where, What, Hint string }

type kindStatus struct {
	Kind      string
	Synced    bool
	Restored  bool
	Events    int
	LastError string
}

// status reads the page.
func (n *node) status(t *testing.T) (s status) {
	t.Helper()
	n.Status(t, &s)
	return s
}

// kind is what /status says of a kind of objects.
func (s status) kind(t *testing.T, kind string) kindStatus {
	t.Helper()
	i := slices.IndexFunc(s.Cluster.Kinds, func(k kindStatus) bool { return k.Kind == kind })
	if i < 0 {
		t.Fatalf("/status has no kind %q", kind)
	}
	return s.Cluster.Kinds[i]
}

// tries counts those at each endpoint of the central resolver.
func (s status) tries() map[string]int {
	tries := map[string]int{}
	for _, e := range s.Cluster.Central.Endpoints {
		tries[strings.TrimPrefix(e.Address, "tcp://")] = e.Requests
	}
	return tries
}

// answerText asks over UDP and puts the answer in words: see [inWords].
func (n *node) answerText(name string, qtype uint16) string {
	return answerText(n.settings.addr, name, qtype)
}

// awaitAnswer asks for the IPv4 addresses repeatedly until the answer is as wanted.
func (n *node) awaitAnswer(t *testing.T, name, want string) {
	t.Helper()
	var got string
	proctest.Eventually(t, limit, fmt.Sprintf("%s is %q", name, want), func() bool {
		got = n.answerText(name, dns.TypeA)
		return got == want
	}, func() string { return "the answer is " + got })
}

// A expectedAnswer is a question and its answer in words.
type expectedAnswer struct {
	name  string
	qtype uint16
	want  string
}

// expect asks each question once.
func (n *node) expect(t *testing.T, list ...expectedAnswer) {
	t.Helper()
	for _, s := range list {
		assert.Equal(t, fmt.Sprintf("%s %s", s.name, dns.TypeToString[s.qtype]), s.want, n.answerText(s.name, s.qtype))
	}
}
