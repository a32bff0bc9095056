// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/capabilities"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/configsource"
)

func agentCommand() *cobra.Command {
	return servingCommand(config.Agent, "agent", "Serve DNS on this node", `Serve DNS on this node until SIGTERM or SIGINT. Logs go to standard error.

Without --config and --config-map the agent uses built-in defaults, which need no
privileges: it listens on port 1053 of 127.0.0.1, and its upstreams are those of
/etc/resolv.conf. "node-cache check --print" shows all defaults.

The agent watches its configuration. A valid change applies at once. An invalid one is
refused: the running configuration stays, and log, status and, if POD_NAME,
POD_NAMESPACE and POD_UID are set, a Kubernetes Event give the reason. SIGHUP reads the
configuration again.

Exit code 0: ended by a signal; 1: it could not start, or failed; 2: invalid command
line.`)
}

func resolverCommand() *cobra.Command {
	return servingCommand(config.Resolver, "resolver", "Serve DNS for the whole cluster", `Serve DNS for the whole cluster until SIGTERM or SIGINT, as the central resolver that
agents ask. Logs go to standard error.

It is the agent with other defaults: it answers the cluster's names from the API server,
listens on port 1053 of every address, and serves its admin pages on every address.
"node-cache check --print --resolver" shows all defaults. It is ready once it has read
the cluster's objects. It does so as the pod's service account, unless the configuration
has cluster.kubeconfig.

Exit code 0: ended by a signal; 1: it could not start, or failed; 2: invalid command
line.`)
}

func servingCommand(role config.Role, name, short, long string) *cobra.Command {
	var from sourceFlags
	cmd := &cobra.Command{
		Use: name + " [--config FILE | --config-map NAMESPACE/NAME]", Short: short, Long: long,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd, role, &from) },
	}
	from.add(cmd)
	return cmd
}

// serve runs an agent or a resolver until the command's context ends.
func serve(cmd *cobra.Command, role config.Role, from *sourceFlags) error {
	ctx := cmd.Context()
	signal.Ignore(syscall.SIGPIPE)                         // SIGPIPE would end the process at a log line whose reader is gone
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP) // SIGHUP would end the process while UntilReload does not wait for it
	origin, err := from.source()
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	origin.UntilReload = func(ctx context.Context) (context.Context, context.CancelFunc) {
		return signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	options := agent.Options{
		Source: origin, Role: role, Version: version, Commit: cli.Commit(), Log: cmd.ErrOrStderr(),
		DropCapabilities: capabilities.Drop,
	}
	a, err := agent.NewContext(ctx, options)
	if err == nil {
		err = a.Listen(ctx)
	}
	if errors.Is(err, context.Canceled) {
		return nil // stopped while it waited for its configuration or its sockets
	}
	if err != nil {
		return err
	}
	if role == config.Agent && !from.given() {
		printWelcome(cmd.OutOrStdout(), a)
	}
	return a.Run(ctx)
}

// printWelcome prints what to type next, for a user who starts the agent without a file.
func printWelcome(out io.Writer, a *agent.Agent) {
	addr, program := a.Addrs()[0], os.Args[0]
	_, _ = fmt.Fprintf(out, "node-cache %s answers DNS on %s, UDP and TCP. In another terminal:\n", version, addr)
	_, _ = fmt.Fprintf(out, "  dig @%s -p %d example.com\n", addr.Addr(), addr.Port())
	_, _ = fmt.Fprintf(out, "  %s query --server %s example.com\n", program, addr)
	if admin := a.AdminAddr(); admin.IsValid() {
		_, _ = fmt.Fprintf(out, "  curl 'http://%s/status?format=text'    shows its status\n", admin)
		_, _ = fmt.Fprintf(out, "  curl http://%s/metrics                 shows its metrics\n", admin)
	}
	_, _ = fmt.Fprintf(out, "It uses built-in defaults; `%s check --print` shows them. Ctrl-C stops it.\n", program)
}

// sourceFlags say where the configuration comes from.
type sourceFlags struct {
	file, configMap, kubeconfig, kubeDNS, standby, lastGood string
}

// add adds the flags to the command of an agent or a resolver.
func (f *sourceFlags) add(cmd *cobra.Command) {
	flags, who := cmd.Flags(), cmd.Name()
	flags.StringVar(&f.file, "config", "", "configuration `FILE` (YAML), watched while the "+who+" runs")
	flags.StringVar(&f.configMap, "config-map", "", "ConfigMap with the configuration in its key "+configsource.Key+", as `NAMESPACE/NAME`; it is watched at the API server")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` with which --config-map is read; default: the pod's service account")
	flags.StringVar(&f.kubeDNS, "kube-dns", "", "`FOLDER` at which the ConfigMap kube-dns is mounted, watched; its stubDomains and upstreamNameservers replace the routes of the configuration for these zones")
	flags.StringVar(&f.standby, "standby", "", "`FILE` that may be missing, watched: while it says true, the configuration has standby: true")
	flags.StringVar(&f.lastGood, "last-good", "", "`FOLDER` in which the last applied configuration is saved; if there is no valid configuration at the next start, that one is used")
}

// given reports whether a flag names a configuration.
func (f *sourceFlags) given() bool { return f.file != "" || f.configMap != "" }

// source returns where the configuration comes from, by the flags and the pod's environment.
func (f *sourceFlags) source() (c configsource.Config, err error) {
	switch {
	case f.file != "" && f.configMap != "":
		return c, errors.New("--config and --config-map exclude each other: the configuration is in one place")
	case f.kubeconfig != "" && f.configMap == "":
		return c, errors.New("--kubeconfig is for --config-map, which is missing; the configuration has cluster.kubeconfig for the cluster's names")
	case f.kubeDNS != "" && !f.given():
		return c, errors.New("--kube-dns is laid over a configuration: --config or --config-map is missing")
	case f.standby != "" && !f.given():
		return c, errors.New("--standby is laid over a configuration: --config or --config-map is missing")
	case f.lastGood != "" && !f.given():
		return c, errors.New("--last-good is for a configuration that may go bad: --config or --config-map is missing")
	}
	c = configsource.Config{
		File: f.file, Kubeconfig: f.kubeconfig, KubeDNS: f.kubeDNS, Standby: f.standby, LastGood: f.lastGood,
		PodUID: os.Getenv("POD_UID"), Node: os.Getenv("NODE_NAME"),
	}
	c.Pod.Namespace, c.Pod.Name = os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME")
	if f.configMap != "" {
		if c.ConfigMap, err = configsource.ParseObject(f.configMap); err != nil {
			err = fmt.Errorf("--config-map: %w", err)
		}
	}
	return c, err
}
