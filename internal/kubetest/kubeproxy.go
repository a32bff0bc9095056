// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// kubeProxyNode is the node that kube-proxy says it runs on.
const kubeProxyNode = "kube-proxy"

// kubeProxyHealth is where kube-proxy says whether it is in step, in its own network namespace.
const kubeProxyHealth = "127.0.0.1:10256"

// KubeProxyOptions say how kube-proxy runs, and where. The zero value: with nftables, in a network namespace of its own
// that holds nothing but a loopback device and the way to the API server.
type KubeProxyOptions struct {
	Mode     string       // "nftables" or "iptables"; empty: nftables
	Programs string       // a folder whose programs it takes before those of the system; empty: none
	Enter    func() error // takes the calling thread into a network namespace, for good; nil: into a new one
}

// A KubeProxy is a running kube-proxy. It cannot touch the machine's rules: its network namespace is another.
type KubeProxy struct {
	proxy   *Proxy
	process *proctest.Process
}

// LaunchKubeProxy runs kube-proxy, its files in dir, and waits until it has its first rules in place. It needs root and the
// program nft, or those of iptables, and makes a node for it in the cluster.
func (c *Cluster) LaunchKubeProxy(ctx context.Context, dir string, o KubeProxyOptions) (*KubeProxy, error) {
	o.Mode = cmp.Or(o.Mode, "nftables")
	if o.Enter == nil {
		o.Enter = func() error {
			_, err := nodetest.NewNamespace()
			return err
		}
	}
	node := Node(kubeProxyNode, "zone-0")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}}
	if err := c.Load(ctx, node); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	k := &KubeProxy{}
	started := make(chan error, 1)
	go func() { // ends with the process: joined by Close
		// The thread is not unlocked, so that it ends with this goroutine: no other goroutine may run in its namespace.
		// The process lives in the namespace of the thread that starts it, and dies with that thread.
		runtime.LockOSThread()
		err := k.launch(ctx, c, dir, &o)
		started <- err
		if err == nil {
			<-k.process.Done()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return k, nil
}

// launch moves the calling thread into the network namespace and starts everything from there.
func (k *KubeProxy) launch(ctx context.Context, c *Cluster, dir string, o *KubeProxyOptions) error {
	if err := o.Enter(); err != nil {
		return err
	}
	var err error
	if k.proxy, err = NewProxy(ctx, c.Address()); err != nil { // listens here and dials from other threads
		return err
	}
	kubeconfig, err := c.KubeconfigAt(Admin, k.proxy.Addr())
	if err != nil {
		k.proxy.Close()
		return err
	}
	cmd := command(ctx, "kube-proxy", dir,
		c.Programs.Kube, "kube-proxy", "--kubeconfig="+kubeconfig, "--proxy-mode="+o.Mode,
		"--hostname-override="+kubeProxyNode, "--cluster-cidr=10.128.0.0/9", "--healthz-bind-address="+kubeProxyHealth,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
	)
	cmd.Env = append(os.Environ(), "PATH="+strings.TrimPrefix(o.Programs+":/usr/sbin:/sbin:/usr/bin:/bin", ":"))
	if k.process, err = proctest.LaunchHere("kube-proxy", cmd); err != nil {
		k.proxy.Close()
		return err
	}
	if err := k.process.Await(ctx, readyPoll, kubeProxySynced); err != nil {
		k.Close()
		return err
	}
	return nil
}

// kubeProxySynced asks kube-proxy by hand: an HTTP client would connect from a thread in another namespace.
func kubeProxySynced(ctx context.Context) error {
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(ctx, "tcp4", kubeProxyHealth)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if status, _, _ := strings.Cut(string(answer), "\r\n"); !strings.Contains(status, " 200 ") {
		return fmt.Errorf("kube-proxy is not in step: %s", status)
	}
	return nil
}

// Traffic returns what kube-proxy and the API server have said to each other.
func (k *KubeProxy) Traffic() Traffic { return k.proxy.Traffic() }

// PID returns its process number.
func (k *KubeProxy) PID() int { return k.process.PID() }

// Close ends it. Its namespace goes with it, and its rules with that.
func (k *KubeProxy) Close() {
	k.process.Kill()
	k.proxy.Close()
}
