// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/handover"
	"github.com/nodecache/node-cache/pkg/subscribe"
)

// After a session is lost, agents subscribe again in time, and give no answer that is older than 5 s and the TTL, which is 5 s too.
const (
	againWithin = 15 * time.Second
	oldestWrong = 10 * time.Second
)

// movedName is the name of a headless Service whose endpoint the test moves.
const (
	movedName = "moved.default.svc.cluster.local"
	moved     = `apiVersion: v1
kind: Service
metadata: {name: moved}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: moved, labels: {kubernetes.io/service-name: moved}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.1.1.1], conditions: {ready: true}}]
`
)

// whole reports whether to run all that mode central has beside TestInstall and TestOverlays.
func whole() bool { return proctest.Soak() || os.Getenv("CENTRAL") != "" }

// testSurvival takes the session from agents while clients ask, in each way that a resolver can be lost; then it replaces the agents, and
// takes away all resolvers and the API server.
func (b *harness) testSurvival(t *testing.T) {
	t.Helper()
	b.kubectlInput(t, moved, "apply", "-f", "-")
	clients := b.startClients(t, "survives", "-names="+names+","+movedName)
	b.awaitMoved(t, time.Now(), "", "10.1.1.1")
	dissect := b.capture(t, b.Nodes[0])
	b.testLostResolver(t, clients, "is silent", "10.1.1.2", func(resolver corev1.Pod) { b.silence(t, resolver.Status.PodIP) })
	b.endSilence(t)
	b.testLostResolver(t, clients, "is killed", "10.1.1.3", func(resolver corev1.Pod) { b.signal(t, resolver, "KILL") })
	b.testAgentsReplaced(t, clients)
	dissect()
	if whole() { // it takes a minute
		b.testNoResolver(t, clients)
	}
	b.kubectl(t, "delete", "service/moved", "endpointslice/moved")
}

// testLostResolver loses the resolver of an agent's session, and moves the endpoint at once.
func (b *harness) testLostResolver(t *testing.T, clients []client, how, to string, lose func(resolver corev1.Pod)) {
	t.Helper()
	b.awaitMoved(t, time.Now(), "", b.movedTo(t)) // and a session on each node
	lost := b.pushOf(t, b.Nodes[0]).Server
	resolvers := b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver")
	i := slices.IndexFunc(resolvers, func(pod corev1.Pod) bool { return strings.Contains(lost, pod.Status.PodIP+":") })
	if i < 0 {
		t.Fatalf("the session is with %s, which is no resolver", lost)
	}
	resetCounts(t, clients)
	lose(resolvers[i])
	began := b.move(t, to)
	again, old := b.awaitMoved(t, began, lost, to)
	time.Sleep(time.Second)
	got := takeCounts(t, clients)
	proctest.Figure(t, "a resolver %s: sessions with another one after %s, the last old answer after %s; %s",
		how, again.Round(10*time.Millisecond), old.Round(10*time.Millisecond), got)
	if again > againWithin || old > oldestWrong {
		t.Errorf("a resolver %s: sessions with another one after %s, the last old answer after %s", how, again, old)
	}
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}

// testAgentsReplaced has new agents take over from those with sessions.
func (b *harness) testAgentsReplaced(t *testing.T, clients []client) {
	t.Helper()
	resetCounts(t, clients)
	began := time.Now()
	b.kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/node-cache")
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	b.eventually(t, "the old agents are gone", func() bool { return len(b.agents(t)) == 2 })
	took := since(began)
	changed := b.move(t, "10.1.1.4")
	_, old := b.awaitMoved(t, changed, "", "10.1.1.4")
	got := takeCounts(t, clients)
	proctest.Figure(t, "2 agents with sessions replaced in %s, then the last old answer %s after a change; %s", took, old.Round(10*time.Millisecond), got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	for _, pod := range b.agents(t) {
		var s status.Status
		b.status(t, pod, &s)
		if s.Handover.Taken != handover.OutcomeTaken {
			t.Errorf("%s has not got the sockets from the agent before it: %+v", pod.Name, s.Handover)
		}
	}
}

// testNoResolver silences all resolvers and ends the API server. Names in use are answered as stale answers, from memory and, by an agent
// that starts meanwhile, from its snapshot.
func (b *harness) testNoResolver(t *testing.T, clients []client) {
	t.Helper()
	agent := b.agents(t)[0]
	var resolvers []string
	for _, pod := range b.pods(t, "kube-system", "app.kubernetes.io/name=node-cache-resolver") {
		resolvers = append(resolvers, pod.Status.PodIP)
	}
	if err := b.Control.Kill("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	resetCounts(t, clients)
	time.Sleep(8 * time.Second) // longer than a session lasts without a sign of its server
	got := takeCounts(t, clients)
	proctest.Figure(t, "without an API server: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	for _, n := range b.Nodes {
		if s := b.pushOf(t, n); s.Server == "" {
			t.Errorf("%s has no session: %s", n.Name, s.Why)
		}
	}

	b.silence(t, resolvers...)
	b.awaitNoSession(t)
	got = measure(t, clients, proctest.OrdinaryOrSoak(5*time.Second, time.Minute), "without an API server and resolvers, from memory")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	began := time.Now()
	b.signal(t, agent, "TERM")
	proctest.Eventually(t, limit, "a new agent answers from the snapshot", func() bool {
		got, err := b.tryFromNode(t, b.Nodes[0], movedName) // none before it has the lease
		return err == nil && b.upOf(t, b.Nodes[0]) < time.Since(began) && slices.Equal(got, []string{"10.1.1.4"})
	})
	took := since(began)
	got = measure(t, clients, 3*time.Second, "without an API server and resolvers, from the snapshot")
	proctest.Figure(t, "a new agent answers from the snapshot %s after the end of the old one", took)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	b.endSilence(t)
	if err := b.Control.Restart("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	b.eventually(t, "the API server serves", func() bool {
		_, err := b.Kubectl(t.Context(), "", "get", "namespaces")
		return err == nil
	})
	changed := b.move(t, "10.1.1.5")
	_, old := b.awaitMoved(t, changed, "", "10.1.1.5")
	proctest.Figure(t, "after the outage, the last old answer %s after a change", old.Round(10*time.Millisecond))
}

// move gives movedName another address, and returns when it has it.
func (b *harness) move(t *testing.T, to string) time.Time {
	t.Helper()
	slices := b.Client().DiscoveryV1().EndpointSlices("default")
	var one *discoveryv1.EndpointSlice
	b.eventually(t, "the endpoint moves", func() bool {
		var err error
		if one, err = slices.Get(t.Context(), "moved", metav1.GetOptions{}); err != nil {
			return false
		}
		one.Endpoints[0].Addresses = []string{to}
		_, err = slices.Update(t.Context(), one, metav1.UpdateOptions{})
		return err == nil
	})
	return time.Now()
}

func (b *harness) movedTo(t *testing.T) string {
	t.Helper()
	return b.endpoints(t, "moved")[0]
}

// awaitMoved waits until both nodes have a session with a server that is not lost, and the address. It returns how long after
// began each of both took: the sessions, and the last query for which a node got another address.
func (b *harness) awaitMoved(t *testing.T, began time.Time, lost, to string) (again, old time.Duration) {
	t.Helper()
	proctest.Eventually(t, limit, "sessions, and the new address", func() bool {
		right, open := true, true
		for _, n := range b.Nodes {
			asked := time.Since(began)
			if !slices.Equal(b.lookupFromNode(t, n, movedName), []string{to}) {
				right, old = false, max(old, asked)
			}
			s := b.pushOf(t, n)
			open = open && s.Server != "" && s.Server != lost
		}
		if !open {
			again = 0
		} else if again == 0 {
			again = time.Since(began)
		}
		return right && open
	}, func() string { return b.state(t) })
	return again, old
}

// awaitNoSession waits until no agent has a session, and answers live by their TTL.
func (b *harness) awaitNoSession(t *testing.T) {
	t.Helper()
	proctest.Eventually(t, limit, "no sessions", func() bool {
		return !slices.ContainsFunc(b.Nodes, func(n *kubenode.Node) bool { return b.pushOf(t, n).Server != "" })
	})
	time.Sleep(6 * time.Second) // the TTL, and the one second of a denial of a session
}

// silence has both nodes drop the DNS packets of pods. Probes and endpoints stay.
func (b *harness) silence(t *testing.T, addrs ...string) {
	t.Helper()
	set := "{ " + strings.Join(addrs, ", ") + " }"
	rules := "table inet silence {\n"
	for _, hook := range []string{"prerouting", "output", "postrouting"} {
		rules += "chain " + hook + " { type filter hook " + hook + " priority -300;\n" +
			"ip daddr " + set + " meta l4proto { tcp, udp } th dport 53 drop\nip saddr " + set + " meta l4proto { tcp, udp } th sport 53 drop\n}\n"
	}
	for _, n := range b.Nodes {
		if out, err := n.Output(t.Context(), "nft", rules+"}"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

func (b *harness) endSilence(t *testing.T) {
	t.Helper()
	for _, n := range b.Nodes {
		if out, err := n.Output(t.Context(), "nft", "delete table inet silence"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

// signal sends a signal to the program of a pod.
func (b *harness) signal(t *testing.T, pod corev1.Pod, name string) {
	t.Helper()
	i := slices.IndexFunc(b.Nodes, func(n *kubenode.Node) bool { return n.Name == pod.Spec.NodeName })
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if out, err := b.Nodes[i].Output(t.Context(), "ctr", "tasks", "kill", "--signal", name, id); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// pushOf returns what the agent of a node says of its session. It needs no API server, and returns zero while no agent answers.
func (b *harness) pushOf(t *testing.T, n *kubenode.Node) (of subscribe.Stats) {
	t.Helper()
	if s := b.nodeStatus(t, n); s.Cluster != nil && s.Cluster.Central != nil && s.Cluster.Central.Push != nil {
		of = *s.Cluster.Central.Push
	}
	return of
}

// upOf returns how long the agent of a node runs, an hour while none answers.
func (b *harness) upOf(t *testing.T, n *kubenode.Node) time.Duration {
	t.Helper()
	if s := b.nodeStatus(t, n); s.Up > 0 {
		return time.Duration(s.Up * float64(time.Second))
	}
	return time.Hour
}

func (b *harness) nodeStatus(t *testing.T, n *kubenode.Node) (s status.Status) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://169.254.20.10:9253/status", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}, Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		return s
	}
	defer func() { _ = answer.Body.Close() }()
	if text, err := io.ReadAll(answer.Body); err == nil {
		_ = json.Unmarshal(text, &s) // an agent that starts has none
	}
	return s
}

// capture records the DNS over TCP of a node. The function that it returns has Wireshark's dissector read the sessions that began
// meanwhile: they have messages of each type, none of which is malformed.
func (b *harness) capture(t *testing.T, n *kubenode.Node) (dissect func()) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		return func() { t.Log("tshark is not installed") }
	}
	const file = "/run/sessions"
	if err := n.Start("capture", "/usr/bin/dumpcap", "-q", "-i", "any", "-f", "tcp port 53", "-w", file); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := n.Kill("capture"); err != nil {
			t.Fatal(err)
		}
		read := func(filter, fields string) [][]string {
			args := []string{"-r", n.Path(file), "-Y", filter, "-T", "fields", "-E", "separator=;"}
			for f := range strings.FieldsSeq(fields) {
				args = append(args, "-e", f)
			}
			out, err := exec.CommandContext(t.Context(), "tshark", args...).Output() // an error if the last packet was cut short
			var rows [][]string
			for line := range strings.Lines(string(out)) {
				rows = append(rows, strings.Split(strings.TrimSuffix(line, "\n"), ";"))
			}
			if len(rows) == 0 {
				t.Fatalf("tshark %s: %v", args, err)
			}
			return rows
		}
		whole := map[string]bool{}
		for _, row := range read("tcp.flags.syn == 1 && tcp.flags.ack == 0", "tcp.stream") {
			whole[row[0]] = true
		}
		types, sessions := map[string]int{}, map[string]bool{}
		for _, row := range read("dns.flags.opcode == 6", "tcp.stream dns.length dns.dso.tlv.type _ws.malformed") {
			if !whole[row[0]] {
				continue
			}
			sessions[row[0]] = true
			for name := range strings.SplitSeq(row[2], ",") {
				types[name]++
			}
			if row[3] != "" && !slices.Contains(strings.Split(row[1], ","), "12") { // tshark 4.0 does not know responses without a TLV
				t.Errorf("Wireshark: malformed: %q", row)
			}
		}
		proctest.Figure(t, "Wireshark's dissector: %d sessions, messages by the type of TLVs: %v", len(sessions), types)
		for _, name := range []string{"1", "64", "65", "63488"} { // Keepalive, SUBSCRIBE, PUSH, and what a server has
			if types[name] == 0 {
				t.Errorf("no TLV of type %s in %d sessions", name, len(sessions))
			}
		}
	}
}
