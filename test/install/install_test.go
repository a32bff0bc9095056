// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestInstall goes with a user from the first command of the README to the last. Each step needs those before it.
func TestInstall(t *testing.T) {
	t.Parallel()
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables", Registry: true, Images: []string{writeLookupImage(t)}})
	blocks := readme(t)
	b.pushImage(t, blocks[stepImage])
	before := b.nodeStates(t)
	ok := inTurn(t)
	ok("preflight", func(t *testing.T) {
		t.Helper()
		b.testPreflight(t, "iptables", "base")
	})
	began := time.Now()
	ok("agents on every node", func(t *testing.T) {
		t.Helper()
		b.runBlock(t, fromRelease(blocks[stepAgents]))
		b.awaitAgentsReady(t)
		proctest.Figure(t, "2 agents ready %s after kubectl apply", since(began))
		// The checkout has the same objects, and the steps below use it.
		for line := range strings.Lines(b.kubectl(t, "apply", "-k", repository+"/daemonset/base")) {
			if !strings.HasSuffix(line, " unchanged\n") {
				t.Errorf("kubectl apply -k daemonset/base after -f install.yaml: %s", line)
			}
		}
	})
	ok("a pod that asks it", func(t *testing.T) {
		t.Helper()
		b.runBlock(t, blocks[stepTry])
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("a pod is answered %s after the first command", took)
		}
		proctest.Figure(t, "a pod is answered %s after the first command, with images pulled from a registry", since(began))
	})
	b.testInUse(t, blocks)
	ok("take it away", func(t *testing.T) {
		t.Helper()
		b.runBlock(t, blocks[stepKubeletBack])
		b.runBlock(t, fromRelease(blocks[stepRemove]))
		b.awaitClean(t, before)
		b.expectNoFiles(t)
	})
	if !proctest.Soak() {
		if iptablesVariant {
			ok("iptables", func(t *testing.T) {
				t.Helper()
				b.testIPTables(t, before)
			})
		}
		return // TestOverlays has the steps below with kube-proxy's other mode, a soak iptables in TestFamilies
	}
	ok("transparent", b.testTransparent)
	ok("transparent leaves nothing", func(t *testing.T) {
		t.Helper()
		b.awaitClean(t, before)
	})
}

// TestInstallCentral has the steps of TestInstall with agents that ask a central resolver and subscribe there.
func TestInstallCentral(t *testing.T) {
	t.Parallel()
	if !whole() {
		t.Skip("TestInstall has the steps, and TestOverlays what differs: make soak, or CENTRAL=1")
	}
	b := newHarness(t, kubenode.Options{ProxyMode: "iptables", Images: []string{writeLookupImage(t)}})
	b.overlay = "overlays/central"
	blocks := readme(t)
	before := b.nodeStates(t)
	ok := inTurn(t)
	ok("agents on every node", func(t *testing.T) {
		t.Helper()
		b.kubectl(t, "apply", "-k", repository+"/daemonset/"+b.overlay)
		b.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/node-cache-resolver", "--timeout=2m")
		b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
		b.awaitAgentsReady(t)
	})
	b.testInUse(t, blocks)
	ok("take it away", func(t *testing.T) {
		t.Helper()
		b.runBlock(t, blocks[stepKubeletBack])
		b.runShell(t, "kubectl delete -k daemonset/"+b.overlay)
		b.runCleanup(t, "daemonset/uninstall")
		b.awaitClean(t, before)
		b.expectNoFiles(t)
	})
}

// inTurn returns what runs a step, unless one before has failed.
func inTurn(t *testing.T) func(name string, step func(*testing.T)) {
	t.Helper()
	return func(name string, step func(*testing.T)) {
		if !t.Failed() {
			t.Run(name, step)
		}
	}
}

// testInUse has the steps from the first pod that asks an agent to the last.
func (b *harness) testInUse(t *testing.T, blocks [][]string) {
	t.Helper()
	ok := inTurn(t)
	ok("a namespace opts in", b.testOptIn)
	ok("kubelets name it", func(t *testing.T) {
		t.Helper()
		b.runBlock(t, blocks[stepKubelet])
		b.testResolution(t)
	})
	ok("verify it", b.testVerify)
	ok("headless names follow a Deployment", b.testScaling)
	ok("tune it", func(t *testing.T) {
		t.Helper()
		b.testTuning(t, blocks[stepTune])
	})
	ok("a bad change is refused", b.testRefusedConfig)
	ok("probes under load", b.testProbesUnderFlood)
	ok("a rolling update under load", b.testRollingUpdate)
	ok("the search path", b.testSearchPath)
	ok("the kubectl plugin", b.testPlugin)
	ok("the kubectl plugin, streams", b.testPluginStreams)
	ok("pods from the kubelet", b.testKubeletPods)
	ok("Prometheus", b.testMonitoring)
	ok("an outage of the upstreams", b.testOutage)
	ok("leave in one step", b.testStandby)
}

// testVerify types the commands of the page about verifying.
func (b *harness) testVerify(t *testing.T) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs/verify.md"))
	if err != nil {
		t.Fatal(err)
	}
	pod, written := b.startClients(t, "verifies")[0].name, ""
	page, _, _ = bytes.Cut(page, []byte("\n$ helm")) // for the chart: TestOverlays/helm
	for _, block := range commands(strings.ReplaceAll(string(page), "YOUR_POD", pod)) {
		written += b.runBlock(t, block, "POD="+b.agents(t)[0].Name)
	}
	for _, want := range []string{
		" route=.", "nameserver 169.254.20.10", "Address: 10.96.0.1", "www.example.com.", " 0 failed",
	} {
		if !strings.Contains(written, want) {
			t.Errorf("the commands wrote no %q", want)
		}
	}
	if !regexp.MustCompile("source=" + b.source()).MatchString(written) {
		t.Errorf("the commands wrote no source %s", b.source())
	}
}

// testResolution shows that pods on both nodes resolve by what the kubelet gives them, which is the agent.
func (b *harness) testResolution(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "asks")
	for _, c := range clients {
		if conf := c.exec(t, "cat", "/etc/resolv.conf"); !strings.Contains(conf, "nameserver 169.254.20.10\n") {
			t.Errorf("%s: resolv.conf:\n%s", c.name, conf)
		}
		// By the search list, as programs do.
		if out := c.exec(t, "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(out, "10.96.0.1") {
			t.Errorf("%s: %s", c.name, out)
		}
	}
	got := measure(t, clients, 3*time.Second, "on both nodes, half of the names the cluster's")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}
