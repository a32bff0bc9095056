// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

// doctorChild is the hidden command that doctor runs, in its test pod and to read files of other processes.
const doctorChild = "doctor-child"

// doctorFlags are the flags of doctor.
type doctorFlags struct {
	file      string
	output    string
	name      string
	service   []string
	timeout   time.Duration
	noPod     bool
	corefiles []string
}

func doctorCommand() *cobra.Command {
	x := doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check how this node's DNS queries reach the agent",
		Long: `Check how this node's DNS queries reach the agent: from the node itself, and as a pod
does, from a network namespace that doctor creates and removes. Each line is a check, with
what to do if it fails. Doctor changes nothing else on the node.

Run it on the node or in the agent's container. It needs the capability NET_ADMIN, and for
the checks as a pod SYS_ADMIN or user namespaces. With hostPID it also sees the processes
of the node. Checks that cannot run are listed as skipped.

Exit code 0: no check failed; 1: a check failed; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return x.run(cmd) },
	}
	cmd.Flags().StringVar(&x.file, "config", "", "the agent's or resolver's configuration `FILE`, - for standard input; default: that of the agent on this host, or of the resolver in this pod")
	cli.AddOutput(cmd, cmd.Flags(), &x.output)
	cmd.Flags().StringVar(&x.name, "name", "", "`NAME` of the cluster to ask for, - for none; default: kubernetes.default.svc in clusterDomain")
	cmd.Flags().StringSliceVar(&x.service, "service", nil, "`IP` of the DNS Service, with intercept.mode transparent, if the configuration lacks intercept.services; may be repeated")
	cmd.Flags().DurationVar(&x.timeout, "timeout", time.Second, "the longest `TIME` to wait for each response, such as 500ms")
	cmd.Flags().StringSliceVar(&x.corefiles, "corefile", nil, "`FILE` with the Corefile or ConfigMap of the cluster's DNS, - for standard input: report what the agent does not serve; may be repeated")
	cmd.Flags().BoolVar(&x.noPod, "no-pod", false, "do not check as a pod: create no network namespace")
	return cmd
}

// run checks the node and prints the report.
func (d *doctorFlags) run(cmd *cobra.Command) error {
	if d.file == config.Stdin && slices.Contains(d.corefiles, config.Stdin) {
		return &cli.UsageError{Err: errors.New("--config and --corefile: only one can be standard input")}
	}
	role := hostRole(firstProcess)
	cfg, err := hostConfig(role, agentFiles()...), error(nil)
	if d.file != "" {
		cfg, err = config.LoadFrom(d.file, cmd.InOrStdin(), role)
	}
	if err != nil && d.file != config.Stdin { // the keys of a resolver, such as push.clients, may not suit an agent
		if resolver, asResolver := config.Load(d.file, config.Resolver); asResolver == nil {
			cfg, err = resolver, nil
		}
	}
	if err != nil {
		return err
	}
	c, err := d.config(&cfg)
	if err != nil {
		return &cli.UsageError{Err: err}
	}
	if len(d.corefiles) > 0 {
		inputs, err := readInputs(d.corefiles, cmd.InOrStdin())
		if err != nil {
			return err
		}
		theirs, err := convertInputs(inputs, convert.Options{Replace: true}, false)
		if err != nil {
			return err
		}
		c.Gaps = theirs.Gaps(&cfg)
	}
	c.Push = d.push(cmd.Context(), &cfg)
	report, err := doctor.Run(cmd.Context(), c)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if d.output == "json" {
		err = report.JSON(out)
	} else {
		f, isFile := out.(*os.File)
		err = report.Text(out, isFile && isTerminal(f))
	}
	if err == nil && report.Failed() {
		return cli.ExitError(cli.ExitFailed)
	}
	return err
}

// push returns what the status page says of push. The page decides whether push is on, because without --config cfg may be the default.
func (d *doctorFlags) push(ctx context.Context, cfg *config.Config) (p doctor.Push) {
	if !cfg.Admin.Address.IsValid() && cfg.Admin.Socket == "" {
		return p
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	var s status.Status
	flags := adminFlags{admin: adminOf(cfg)}
	page, err := flags.page(ctx, http.MethodGet, "/status", nil)
	if err == nil {
		err = cli.ReadJSON(page, &s)
	}
	switch {
	case err == nil && s.Cluster != nil && s.Cluster.Central != nil:
		p.Session, p.Served = s.Cluster.Central.Push, s.Push
	case err == nil:
		p.Served = s.Push
	case cfg.Cluster.Central.Push || len(cfg.Push.Clients) > 0:
		p.Err = err
	}
	return p
}

// config returns the doctor's configuration from the agent's.
func (d *doctorFlags) config(cfg *config.Config) (doctor.Config, error) {
	c := doctor.Config{
		Intercept:  cfg.Intercept.Manage,
		KernelHits: cfg.Kernel.Hits,
		Rules: rules.Rules{
			Addresses: cfg.Listen.Addresses, Port: cfg.Listen.Port, Services: cfg.Intercept.Services,
		},
		Backend:    cfg.Intercept.Backend,
		ManageLink: cfg.Interface.Manage,
		Link:       cfg.Interface.Name,
		Admin:      cfg.Admin.Address,
		Domain:     cfg.ClusterDomain,
		Timeout:    d.timeout,
		Now:        time.Now,
	}
	if cfg.Intercept.Mode == config.ModeTransparent {
		c.Rules.Mode, c.Rules.Excluded = rules.Transparent, cfg.Intercept.ServiceExcluded
	}
	for _, text := range d.service {
		a, err := netip.ParseAddr(text)
		if err != nil || c.Rules.Mode != rules.Transparent {
			return c, fmt.Errorf("--service %q: not an IP address, or the mode is not transparent", text)
		}
		c.Rules.Services = append(c.Rules.Services, a)
	}
	switch {
	case d.name == "-":
	case d.name != "":
		name, err := cli.DomainName(d.name)
		if err != nil {
			return c, fmt.Errorf("--name %w", err)
		}
		c.Name = name
	case cfg.Cluster.Resolver != config.ResolverNone || cfg.Intercept.Manage:
		c.Name = "kubernetes.default.svc." + cfg.ClusterDomain
	}
	program, err := os.Executable()
	if err != nil {
		return c, errors.New("finding the own program, which is run as a child: " + err.Error())
	}
	c.Command, c.NoPod = []string{program, doctorChild}, d.noPod
	return c, nil
}

// isTerminal reports whether the output is a terminal with colors.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

// doctorChildCommand returns the hidden command that doctor runs as a child process.
func doctorChildCommand() *cobra.Command {
	return &cobra.Command{
		Use:    doctorChild,
		Short:  "Query as a pod and read files (started by doctor)",
		Hidden: true,
		Args:   cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return doctor.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), time.Now)
		},
	}
}
