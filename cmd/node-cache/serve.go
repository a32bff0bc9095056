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
	return servingCommand(config.Agent, "agent", "Serve DNS on this node", `Serve DNS on this node until SIGTERM or SIGINT.

Without a file the agent uses built-in defaults, which need no privileges: port 1053 of
127.0.0.1, and upstreams from /etc/resolv.conf. A file is watched: valid changes apply
at once, an invalid file is refused and the running configuration stays. The same
holds for a ConfigMap, read through the API or mounted as a folder. SIGHUP reads and
applies the configuration again. If the pod's identity is set (POD_NAME, POD_NAMESPACE,
POD_UID), a refusal is also an Event.

Logs go to standard error.`)
}

func resolverCommand() *cobra.Command {
	return servingCommand(config.Resolver, "resolver", "Serve DNS for the whole cluster", `Serve DNS for the whole cluster until SIGTERM or SIGINT: cluster names from the API
server, all other names through the configured routes. It is the agent with other
defaults: it listens on every address, serves the cluster zone with all endpoints, and
serves the admin pages on every address. It is ready once the cluster zone is synced.
Without a file it uses the pod's service account. Logs go to standard error.`)
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
		Source: origin, Role: role, Version: version, Log: cmd.ErrOrStderr(),
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
	file, configMap, kubeconfig, kubeDNS, lastGood string
}

// add adds the flags to the command of an agent or a resolver.
func (f *sourceFlags) add(cmd *cobra.Command) {
	flags, who := cmd.Flags(), cmd.Name()
	flags.StringVar(&f.file, "config", "", "configuration `FILE`, watched while the "+who+" runs")
	flags.StringVar(&f.configMap, "config-map", "", "ConfigMap `NAMESPACE/NAME` with the configuration in its key "+configsource.Key+", watched through the API instead of a file")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for --config-map; default: the pod's service account")
	flags.StringVar(&f.kubeDNS, "kube-dns", "", "mounted kube-dns ConfigMap; `FOLDER` is watched, its stub domains and nameservers replace those of the configuration")
	flags.StringVar(&f.lastGood, "last-good", "", "save the last applied configuration in `FOLDER`, and start with it if there is no valid one")
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
	case f.lastGood != "" && !f.given():
		return c, errors.New("--last-good is for a configuration that may go bad: --config or --config-map is missing")
	}
	c = configsource.Config{
		File: f.file, Kubeconfig: f.kubeconfig, KubeDNS: f.kubeDNS, LastGood: f.lastGood,
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
