// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/proctest"
)

// What the API server gives services: both families, the first by default. The first address of the range is that
// of default/kubernetes.
const (
	ServiceRangeIPv4 = "10.96.0.0/12"
	ServiceRangeIPv6 = "fd00:10:96::/112"
	serviceIP        = "10.96.0.1"
)

const (
	readyPoll = 50 * time.Millisecond // how often the API server is asked whether it is ready
	grace     = 10 * time.Second      // how long it may take to end after SIGTERM before it is killed
)

// The store listens on sockets in the cluster's folder, which both programs run in. It wants host and port in a
// URL; for the scheme unix they are the name of the file.
const (
	storeURL = "unix://store:1"
	peerURL  = "unix://peer:1"
	// storeFolder holds its data.
	storeFolder = "etcd"
)

func (c *Cluster) etcdCommand() []string {
	return []string{
		c.options.Programs.Etcd, "--data-dir=" + storeFolder, "--name=store",
		"--listen-client-urls=" + storeURL, "--advertise-client-urls=" + storeURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL, "--initial-cluster=store=" + peerURL,
		"--unsafe-no-fsync", "--log-level=warn",
	}
}

func (c *Cluster) apiServerCommand() []string {
	command := []string{
		c.options.Programs.Kube, "kube-apiserver",
		"--etcd-servers=" + storeURL,
		"--bind-address=" + c.address.Addr().String(), fmt.Sprintf("--secure-port=%d", c.address.Port()),
		// Kept for documentation (RFC 5737): a loopback address is no endpoint of default/kubernetes.
		"--advertise-address=192.0.2.1",
		"--tls-cert-file=" + serverCertFile, "--tls-private-key-file=" + serverKeyFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + accountPubFile, "--service-account-signing-key-file=" + accountKeyFile,
		"--service-cluster-ip-range=" + ServiceRangeIPv4 + "," + ServiceRangeIPv6,
		"--token-auth-file=" + tokenFile, "--authorization-mode=RBAC", "--allow-privileged=true",
		// Pods are accepted before their namespace has a service account.
		"--disable-admission-plugins=ServiceAccount",
		// Without it a stop waits a minute for open watches.
		"--shutdown-watch-termination-grace-period=2s",
		"--profiling=false",
	}
	if c.options.Audit {
		command = append(command, "--audit-policy-file="+auditPolicyFile, "--audit-log-path="+auditFile)
	}
	return append(command, c.options.APIServerFlags...)
}

// StartAPIServer starts the API server, on the same address and with the same data as before, and waits until it is
// ready. When it runs already, StartAPIServer only waits.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if c.apiserver == nil || c.apiserver.Ended() {
		p, err := c.start(ctx, "kube-apiserver", c.apiServerCommand()...)
		if err != nil {
			return err
		}
		c.apiserver = p
	}
	return c.apiserver.Await(ctx, readyPoll, c.checkReady)
}

// checkReady asks the API server whether it is ready. Only after it says so does it make default/kubernetes, of which
// the slice comes last.
func (c *Cluster) checkReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	_, err := c.client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	return err
}

// StopAPIServer asks the API server to end, which closes its watches gracefully, and waits until it has.
func (c *Cluster) StopAPIServer() {
	c.withAPIServer(func(p *proctest.Process) {
		p.Stop(grace)
		c.apiserver = nil
	})
}

// KillAPIServer kills the API server: its connections are reset.
func (c *Cluster) KillAPIServer() {
	c.withAPIServer(func(p *proctest.Process) {
		p.Kill()
		c.apiserver = nil
	})
}

// withAPIServer calls do with the API server, if it runs.
func (c *Cluster) withAPIServer(do func(*proctest.Process)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiserver != nil {
		do(c.apiserver)
	}
}

// APIServerPID returns the API server's process number, 0 when it does not run.
func (c *Cluster) APIServerPID() int {
	pid := 0
	c.withAPIServer(func(p *proctest.Process) { pid = p.PID() })
	return pid
}

func (c *Cluster) controllersCommand() []string {
	return []string{
		c.options.Programs.Kube, "kube-controller-manager",
		"--kubeconfig=" + c.Kubeconfig(controllersUser), "--service-account-private-key-file=" + accountKeyFile,
		// The garbage collector removes the slices of a deleted service.
		"--controllers=endpointslice-controller,garbage-collector-controller,namespace-controller,serviceaccount-controller",
		"--leader-elect=false", "--use-service-account-credentials=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	}
}
