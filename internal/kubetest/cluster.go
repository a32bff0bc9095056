// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nodecache/node-cache/internal/proctest"
)

// startLimit bounds the wait for one program to serve. A machine that runs other tests beside this one is slow.
const startLimit = 2 * time.Minute

// Options say what a cluster has. The zero value is an API server with its store.
type Options struct {
	// Dir is the absolute path of an empty folder for the cluster's state. [Start] uses one of the test's own.
	Dir string
	// Users are known to the API server besides [Admin], and may do nothing that no role grants them. A name
	// like system:serviceaccount:NAMESPACE:NAME has the permissions that bindings give to that service account.
	Users []string
	// Controllers runs the controller manager with what makes EndpointSlices, removes what belongs to deleted
	// objects, empties deleted namespaces and creates default service accounts.
	Controllers bool
	// Audit logs every request, for [Cluster.Audit].
	Audit bool
}

// A Cluster is a running control plane. Its methods may be called by several goroutines.
type Cluster struct {
	Programs Programs // what it runs

	options Options
	address netip.AddrPort
	keys    Keys
	users   []user
	config  *rest.Config // Admin's
	client  *kubernetes.Clientset

	mu        sync.Mutex          // guards the fields below; held while the API server starts or ends, so that these do not overlap
	apiserver *proctest.Process   // the latest
	started   []*proctest.Process // every program so far
}

// Start runs a cluster for a test and ends it with the test. When the test has failed, the log has the end of what
// each program wrote.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	o.Dir = tb.TempDir()
	c, err := Launch(tb.Context(), o)
	if err != nil {
		tb.Fatalf("starting a cluster: %v", err)
	}
	tb.Cleanup(func() {
		c.Close()
		if tb.Failed() {
			tb.Logf("the cluster's programs:\n%s", c.logTails())
		}
	})
	return c
}

// Launch runs a cluster for a program, which closes it. ctx bounds the start, not the life of the cluster.
func Launch(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{options: o}
	var err error
	if c.Programs, err = Build(ctx); err != nil {
		return nil, err
	}
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	if err := c.launch(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// prepare writes what the programs read.
func (c *Cluster) prepare(ctx context.Context) error {
	var err error
	if c.address, err = proctest.ReservePort(ctx); err != nil {
		return err
	}
	c.users = newUsers(c.options.Users)
	if c.keys, err = WriteKeys(c.options.Dir); err != nil {
		return err
	}
	if err := writeTokens(c.path(tokenFile), c.users); err != nil {
		return err
	}
	for _, u := range c.users {
		if err := WriteKubeconfig(c.Kubeconfig(u.name), c.keys.CA, c.Server(), u.name, u.token); err != nil {
			return err
		}
	}
	if c.options.Audit {
		if err := writeAuditPolicy(c.path(auditPolicyFile)); err != nil {
			return err
		}
	}
	c.config = c.Config(Admin)
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return nil
}

// launch starts the programs, each when what it needs is there.
func (c *Cluster) launch(ctx context.Context) error {
	if _, err := c.start(ctx, "etcd", append([]string{c.Programs.Etcd}, EtcdArgs("etcd")...)...); err != nil {
		return err
	}
	// The API server waits for its store by itself.
	if err := c.StartAPIServer(ctx); err != nil || !c.options.Controllers {
		return err
	}
	_, err := c.start(ctx, "kube-controller-manager", c.controllersCommand()...)
	return err
}

// start starts a program in the cluster's folder. ctx lends its values only.
func (c *Cluster) start(ctx context.Context, name string, argv ...string) (*proctest.Process, error) {
	cmd := command(ctx, name, c.options.Dir, argv...)
	p, err := proctest.Launch(name, cmd)
	if err == nil {
		c.started = append(c.started, p)
	}
	return p, err
}

// command is a program that runs until it is stopped, under the name by which programs of Kubernetes call themselves to
// the API server.
func command(ctx context.Context, name, dir string, argv ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), argv[0], argv[1:]...)
	cmd.Args[0], cmd.Dir = name, dir
	return cmd
}

// Close ends every program. The state stays in the cluster's folder.
func (c *Cluster) Close() {
	c.KillAPIServer()
	for _, p := range c.started {
		p.Kill()
	}
}

// Client returns Admin's client, which does not limit its own rate.
func (c *Cluster) Client() *kubernetes.Clientset { return c.client }

// Config returns a client configuration of the user, to be changed at will. It sets no limit to the rate of
// requests and asks for protobuf. For a name that is not among the users it has no token.
func (c *Cluster) Config(name string) *rest.Config {
	config := &rest.Config{
		Host:            c.Server(),
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.keys.CA},
		ContentConfig: rest.ContentConfig{
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
			ContentType:        runtime.ContentTypeProtobuf,
		},
		UserAgent: "kubetest",
		QPS:       -1,
		// Tests write objects that break rules, and on purpose.
		WarningHandler: rest.NoWarnings{},
	}
	for _, u := range c.users {
		if u.name == name {
			config.BearerToken = u.token
		}
	}
	return config
}

// Server returns the URL of the API server.
func (c *Cluster) Server() string { return "https://" + c.address.String() }

// Address returns where the API server listens.
func (c *Cluster) Address() netip.AddrPort { return c.address }

// Kubeconfig returns the path of the user's kubeconfig. There is a file for [Admin] and for each of Options.Users.
func (c *Cluster) Kubeconfig(name string) string { return c.path(name + ".kubeconfig") }

// KubeconfigAt writes a kubeconfig with which the user reaches the API server through another address, such as a
// [Proxy]'s, and returns its path. The server's certificate names 127.0.0.1, ::1 and localhost.
func (c *Cluster) KubeconfigAt(name string, address netip.AddrPort) (string, error) {
	for _, u := range c.users {
		if u.name == name {
			path := c.path(fmt.Sprintf("%s-%d.kubeconfig", name, address.Port()))
			return path, WriteKubeconfig(path, c.keys.CA, "https://"+address.String(), u.name, u.token)
		}
	}
	return "", fmt.Errorf("writing a kubeconfig: no user %q", name)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.options.Dir, name) }

// logTails is the end of what each program wrote.
func (c *Cluster) logTails() string {
	var text strings.Builder
	for _, p := range c.started {
		text.WriteString(p.Name + ": " + p.Tail(12) + "\n")
	}
	return text.String()
}
