// SPDX-License-Identifier: Apache-2.0

package kubenode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// startControl starts the control plane up to its API server, which serves when startControl returns.
func (c *Cluster) startControl(ctx context.Context) error {
	addr := c.options.control()
	keys, err := kubetest.WriteKeys(c.dir, addr, netip.MustParseAddr(apiService6))
	if err != nil {
		return err
	}
	token := rand.Text()
	tokens := filepath.Join(c.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",admin,1,system:masters\n"), 0o600); err != nil {
		return fmt.Errorf("writing a token: %w", err)
	}
	if err := kubetest.WriteKubeconfig(c.Kubeconfig(), keys.CA, "https://"+netip.AddrPortFrom(addr, 6443).String(), "admin", token); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	server := append([]string{c.programs.kube}, kubetest.APIServerArgs(keys, tokens)...)
	server = append(server, "--bind-address="+addr.String(), "--secure-port=6443", "--advertise-address="+addr.String(),
		"--service-cluster-ip-range="+c.options.families(serviceNet, serviceNet6), "--kubelet-preferred-address-types=InternalIP")
	if err := errors.Join(
		c.Control.Start("etcd", append([]string{c.programs.etcd}, kubetest.EtcdArgs("/var/lib/etcd")...)...),
		c.Control.Start("kube-apiserver", server...),
	); err != nil {
		return err
	}
	if err := c.waitUntil(ctx, "the API server is ready", func(ctx context.Context) error {
		_, err := c.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return err
	}
	return c.startControllers(keys)
}

func (c *Cluster) startControllers(keys kubetest.Keys) error {
	err := c.Control.Start("kube-controller-manager", c.programs.kube, "kube-controller-manager",
		"--kubeconfig="+c.Kubeconfig(), "--service-account-private-key-file="+keys.AccountKey, "--root-ca-file="+keys.CA,
		"--use-service-account-credentials=false", "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=200", "--kube-api-burst=400")
	if err != nil {
		return err
	}
	return c.Control.Start("kube-scheduler", c.programs.kube, "kube-scheduler",
		"--kubeconfig="+c.Kubeconfig(), "--leader-elect=false", "--secure-port=0")
}

// linkPrograms puts the programs that are run by name on a machine's PATH.
func (c *Cluster) linkPrograms(m *Host) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	for name, target := range map[string]string{"systemctl": self, "containerd-shim-runc-v2": c.programs.shim} {
		if err := m.Link(name, target); err != nil {
			return err
		}
	}
	for name, call := range map[string][]string{
		"kubectl": {c.programs.kube, "kubectl"},
		"ctr":     {c.programs.containerd, "ctr", "--address", containerdSocket, "--namespace", "k8s.io"},
	} {
		script := "#!/bin/sh\nexec " + strings.Join(call, " ") + " \"$@\"\n"
		if err := m.Write(filepath.Join(binFolder, name), script); err != nil {
			return err
		}
	}
	return nil
}
