// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/kubenode"
	"github.com/nodecache/node-cache/internal/proctest"
)

// optInPods are pods of several kinds in a namespace that is in. Each writes its resolv.conf and looks up a name of the cluster by its search
// list, the Job once.
const optInPods = `apiVersion: apps/v1
kind: Deployment
metadata: {name: opted-web}
spec:
  replicas: 2
  selector: {matchLabels: {app: opted-web}}
  template:
    metadata: {labels: {app: opted-web}}
    spec:
      terminationGracePeriodSeconds: 0
      initContainers: [{name: first, image: "` + kubenode.BusyboxImage + `", command: [nslookup, kubernetes.default.svc.cluster.local]}]
      containers: [{name: main, image: "` + kubenode.BusyboxImage + `", command: [sleep, "3600"]}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: opted-db}
spec:
  serviceName: opted-db
  selector: {matchLabels: {app: opted-db}}
  template:
    metadata: {labels: {app: opted-db}}
    spec:
      terminationGracePeriodSeconds: 0
      dnsConfig: {searches: [corp.example], options: [{name: ndots, value: "2"}]}
      hostAliases: [{ip: 192.0.2.1, hostnames: [alias.example]}]
      containers: [{name: main, image: "` + kubenode.BusyboxImage + `", command: [sleep, "3600"]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: opted-job}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: "` + kubenode.BusyboxImage + `", command: [sh, -c, cat /etc/resolv.conf && nslookup kubernetes.default.svc.cluster.local]}
---
apiVersion: v1
kind: Pod
metadata: {name: opted-out, labels: {node-cache.io/dns: "off"}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "` + kubenode.BusyboxImage + `", command: [sleep, "3600"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: opted-host}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "` + kubenode.BusyboxImage + `", command: [sleep, "3600"]}]
`

// testOptIn lets a namespace ask the agents while the kubelets still name the cluster's DNS, kills an agent meanwhile, and goes back, all by
// the commands of the page.
func (b *harness) testOptIn(t *testing.T) {
	t.Helper()
	const agent, central = "nameserver 169.254.20.10\n", "nameserver 10.96.0.10\n"
	policies := b.manifests(t, "daemonset/components/opt-in")
	b.kubectl(t, "apply", "-k", policies)
	resolvConf := func(pod string) string { return b.kubectl(t, "exec", pod, "--", "cat", "/etc/resolv.conf") }
	b.awaitOptIn(t, "ClusterFirst")
	b.kubectl(t, "label", "namespace", "default", "node-cache.io/dns=on")
	b.awaitOptIn(t, "None")
	b.kubectlInput(t, optInPods, "apply", "-f", "-")
	clients := b.startClients(t, "opts-in")
	b.kubectl(t, "rollout", "status", "deployment/opted-web", "statefulset/opted-db", "--timeout=90s")
	b.kubectl(t, "wait", "--for=condition=Complete", "--timeout=90s", "job/opted-job")
	b.kubectl(t, "wait", "--for=condition=Ready", "--timeout=90s", "pod/opted-out", "pod/opted-host")
	out := resolvConf("opted-out")
	if !strings.Contains(out, central) {
		t.Errorf("a pod that is out has\n%s", out)
	}
	in := strings.Replace(out, central, agent, 1) // the kubelet's own, but for the address
	for who, confs := range map[string][2]string{
		"a client":      {resolvConf(clients[0].name), in},
		"a Deployment":  {resolvConf("deployment/opted-web"), in},
		"a StatefulSet": {resolvConf("opted-db-0"), strings.Replace(strings.Replace(in, " cluster.local\n", " cluster.local corp.example\n", 1), "ndots:5", "ndots:2", 1)},
		"a Job":         {b.kubectl(t, "logs", "job/opted-job"), in},
	} {
		if !strings.Contains(confs[0], confs[1]) {
			t.Errorf("%s has\n%swant\n%s", who, confs[0], confs[1])
		}
	}
	if conf := resolvConf("opted-host"); strings.Contains(conf, "169.254.20.10") {
		t.Errorf("a pod of the node's network has\n%s", conf)
	}
	for _, pod := range []string{"deployment/opted-web", "opted-db-0", "opted-out"} {
		if out := b.kubectl(t, "exec", pod, "--", "nslookup", "kubernetes.default.svc.cluster.local"); !strings.Contains(out, "10.96.0.1") {
			t.Errorf("%s: %s", pod, out)
		}
	}
	got := measure(t, clients, 3*time.Second, "pods that are in")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})

	b.killAgent(t, clients)

	b.kubectl(t, "label", "namespace", "default", "node-cache.io/dns-")
	b.awaitOptIn(t, "ClusterFirst")
	resetCounts(t, clients)
	b.kubectl(t, "rollout", "restart", "deployment/opted-web")
	b.kubectl(t, "rollout", "status", "deployment/opted-web", "--timeout=90s")
	if conf := resolvConf("deployment/opted-web"); !strings.Contains(conf, central) {
		t.Errorf("out again, a pod has\n%s", conf)
	}
	got = takeCounts(t, clients)
	proctest.Figure(t, "a Deployment leaves, beside pods that are in: %s", got)
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.kubectlInput(t, optInPods, "delete", "--wait=false", "-f", "-")
	b.removeOptIn(t)
}

// killAgent kills the agent of the first node while clients ask, whom the fallback answers until it has started again.
func (b *harness) killAgent(t *testing.T, clients []client) {
	t.Helper()
	// What a killed process had in its sockets is lost, and its sessions are reset.
	killed := b.agents(t)[0]
	if out, err := b.Nodes[0].Output(t.Context(), "sh", "-c", "kill -KILL $(pidof node-cache)"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := measure(t, clients, 3*time.Second, "while an agent is killed and starts again")
	if got.UDP.Lost > 2 || got.UDP.Wrong > 0 {
		t.Errorf("%s\n%s", got, strings.Join(got.UDP.Failures, "\n"))
	}
	flows := b.trackedFlows(t, clients, true)
	proctest.Figure(t, "the kernels track %d flows to the fallback", len(flows))
	if len(flows) == 0 {
		t.Error("the fallback has answered nothing")
	}
	b.eventually(t, "the agent has started again", func() bool {
		pod := b.agents(t)[0]
		return pod.Name == killed.Name && pod.Status.ContainerStatuses[0].RestartCount > 0
	})
	b.kubectl(t, "-n", "kube-system", "delete", "pod", killed.Name) // a pod that was restarted would disturb the steps to come
	b.awaitAgentsReady(t)
}

// testOptInOf lets a namespace ask the agents of an overlay, whose first address its pods get, kills an agent meanwhile, and goes back.
func (b *harness) testOptInOf(t *testing.T, overlay, addr, names string) {
	t.Helper()
	b.kubectl(t, "apply", "-k", kustomization(t, overlay, "daemonset/components/opt-in"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=2m")
	b.awaitAgentsReady(t)
	b.kubectl(t, "label", "namespace", "default", "node-cache.io/dns=on")
	b.awaitOptIn(t, "None")
	clients := b.startClients(t, "opts-in", "-names="+names)
	for _, c := range clients {
		want := "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver " + addr + "\noptions ndots:5\n"
		if conf := c.exec(t, "cat", "/etc/resolv.conf"); conf != want {
			t.Errorf("%s has\n%swant\n%s", c.name, conf, want)
		}
		if out := c.exec(t, "nslookup", "-type=aaaa", "www.example.com"); !strings.Contains(out, kubenode.InternetAddr6) {
			t.Errorf("%s: %s", c.name, out)
		}
	}
	got := measure(t, clients, 2*time.Second, "pods that are in")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.killAgent(t, clients)
	b.kubectl(t, "label", "namespace", "default", "node-cache.io/dns-")
	b.awaitOptIn(t, "ClusterFirst")
	b.removeOptIn(t)
	got = measure(t, clients, 2*time.Second, "pods that are in, of a namespace that is out")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
}

// removeOptIn removes what component opt-in adds.
func (b *harness) removeOptIn(t *testing.T) {
	t.Helper()
	b.kubectl(t, "delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "-l", "app.kubernetes.io/name=node-cache")
}

// awaitOptIn waits until a pod with these flags of kubectl run gets the DNS policy.
func (b *harness) awaitOptIn(t *testing.T, policy string, flags ...string) {
	t.Helper()
	b.eventually(t, "a new pod has dnsPolicy "+policy, func() bool {
		args := []string{"run", "dry", "--image=none", "--dry-run=server", "-o", "jsonpath={.spec.dnsPolicy}"}
		return b.kubectl(t, append(args, flags...)...) == policy
	})
}
