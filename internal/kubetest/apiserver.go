// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the API server gives services: both families, the first by default. The first address of the range is that
// of default/kubernetes.
const (
	ServiceRangeIPv4 = "10.96.0.0/12"
	ServiceRangeIPv6 = "fd00:10:96::/112"
	serviceIP        = "10.96.0.1"
)

// readyPoll is how often the API server is asked whether it is ready.
const readyPoll = 50 * time.Millisecond

// The store listens on sockets in the cluster's folder, which both programs run in. It wants host and port in a
// URL; for the scheme unix they are the name of the file.
const (
	storeURL = "unix://store:1"
	peerURL  = "unix://peer:1"
)

// EtcdArgs are the arguments of a store that keeps its data in a folder.
func EtcdArgs(folder string) []string {
	return []string{
		"--data-dir=" + folder, "--name=store",
		"--listen-client-urls=" + storeURL, "--advertise-client-urls=" + storeURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL, "--initial-cluster=store=" + peerURL,
		"--unsafe-no-fsync", "--log-level=warn",
	}
}

// APIServerArgs are the arguments that every API server here has, beside its addresses: keys, and the file of its users.
func APIServerArgs(keys Keys, tokens string) []string {
	return []string{
		"kube-apiserver", "--etcd-servers=" + storeURL,
		"--tls-cert-file=" + keys.CA, "--tls-private-key-file=" + keys.ServerKey,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + keys.AccountKey, "--service-account-signing-key-file=" + keys.AccountKey,
		"--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--allow-privileged=true",
		// Without it a stop waits a minute for open watches.
		"--shutdown-watch-termination-grace-period=2s",
		"--profiling=false",
	}
}

func (c *Cluster) apiServerCommand() []string {
	command := append([]string{c.Programs.Kube}, APIServerArgs(c.keys, c.path(tokenFile))...)
	command = append(command,
		"--bind-address="+c.address.Addr().String(), fmt.Sprintf("--secure-port=%d", c.address.Port()),
		// Kept for documentation (RFC 5737): a loopback address is no endpoint of default/kubernetes.
		"--advertise-address=192.0.2.1",
		"--service-cluster-ip-range="+ServiceRangeIPv4+","+ServiceRangeIPv6,
		// Pods are accepted before their namespace has a service account.
		"--disable-admission-plugins=ServiceAccount")
	if c.options.Audit {
		command = append(command, "--audit-policy-file="+c.path(auditPolicyFile), "--audit-log-path="+c.path(auditFile))
	}
	return command
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

// KillAPIServer kills the API server: its connections are reset.
func (c *Cluster) KillAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiserver != nil {
		c.apiserver.Kill()
	}
}

// SignalAPIServer sends the API server a signal. After SIGSTOP its connections stay open and bring nothing.
func (c *Cluster) SignalAPIServer(s syscall.Signal) { c.apiserver.Signal(s) }

func (c *Cluster) controllersCommand() []string {
	return []string{
		c.Programs.Kube, "kube-controller-manager",
		"--kubeconfig=" + c.Kubeconfig(controllersUser), "--service-account-private-key-file=" + c.keys.AccountKey,
		// The garbage collector removes the slices of a deleted service.
		"--controllers=endpointslice-controller,garbage-collector-controller,namespace-controller,serviceaccount-controller",
		"--leader-elect=false", "--use-service-account-credentials=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000",
	}
}
