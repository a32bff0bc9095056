// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/plain"
	"github.com/nodecache/node-cache/pkg/watch"
)

// maxConverted bounds the bytes read of an input file: one more than the converter accepts, so that it refuses a larger file.
const maxConverted = 1<<20 + 1

func convertCommand() *cobra.Command {
	var (
		options                convert.Options
		daemonSet, fromCluster bool
		oldServer, kubeconfig  string
		output                 string
	)
	cmd := &cobra.Command{
		Use:   "convert [--daemonset] FILE... | --from-cluster",
		Short: "Convert the configuration of CoreDNS, NodeLocal DNSCache or kube-dns",
		Long: `Convert the configuration of CoreDNS, NodeLocal DNSCache or kube-dns to one for
node-cache. A FILE is one of these, or - for standard input:

  - a Corefile
  - ConfigMaps, as "kubectl get configmap -o yaml" prints them
  - values of the Helm chart coredns

Several files make one configuration, such as the ConfigMaps node-local-dns and kube-dns,
or a Corefile and the files that it imports. --from-cluster reads the ConfigMaps from the
API server instead.

By default the agents stand in front of the cluster's CoreDNS, which stays. They answer
what could be converted, and ask CoreDNS for the names of everything else. With --replace
there is no CoreDNS later, and everything else is lost. A NodeLocal DNSCache is always
replaced.

The configuration goes to standard output, with the source line of each key as a comment.
It passes "node-cache check --no-files". Standard error lists what is left to CoreDNS,
lost, or different, with what to do about it. With -o json one object on standard output
has both.

Exit code 0: nothing is lost; 4: something is lost; 1: nothing was converted; 2: invalid
command line.`,
		Args: cli.UsageArgs(func(_ *cobra.Command, args []string) error {
			if fromCluster == (len(args) > 0) || kubeconfig != "" && !fromCluster {
				return errors.New("convert: give either FILE, or --from-cluster, which --kubeconfig is for")
			}
			if options.Replace && oldServer != "" {
				return errors.New("convert: give either --replace, or --old-server, which stays")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if options.OldServer, err = parseOldServer(oldServer); err != nil {
				return &cli.UsageError{Err: err}
			}
			inputs, err := readInputs(args, cmd.InOrStdin())
			if options.Complete = fromCluster; fromCluster {
				inputs, err = readCluster(cmd.Context(), kubeconfig, &options)
			}
			if err != nil {
				return err
			}
			result, err := convertInputs(inputs, options, daemonSet)
			if err != nil {
				return err
			}
			return writeConverted(result, output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	cli.AddOutput(cmd, flags, &output)
	flags.BoolVar(&daemonSet, "daemonset", false, "add the keys that the manifests in daemonset/base need: listen address, sockets and folders")
	flags.BoolVar(&options.Faithful, "faithful", false, "where a Corefile says nothing, keep CoreDNS's defaults instead of those of node-cache: no stale answers, no prefetch, upstreams in random order")
	flags.BoolVar(&options.Replace, "replace", false, "the old server will be gone: leave nothing to it")
	flags.StringVar(&oldServer, "old-server", "", "`IP[:PORT]` of the old server, which stays; default: the Service kube-system/kube-dns, if the Corefile answers the cluster's names")
	flags.BoolVar(&fromCluster, "from-cluster", false, "read the ConfigMaps node-local-dns and kube-dns, or coredns and coredns-custom, from the API server")
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for --from-cluster; default: $KUBECONFIG, ~/.kube/config, or the pod's service account")
	return cmd
}

// parseOldServer parses the address of the old server; zero: there is none.
func parseOldServer(text string) (a netip.AddrPort, err error) {
	if text == "" {
		return a, nil
	}
	t, err := config.ParseTarget(text)
	if err != nil || t.Kind != config.Plain {
		return a, fmt.Errorf("convert: --old-server %s: not an IP address with or without a port", text)
	}
	return t.Addr, nil
}

// convertInputs converts the inputs to a configuration with notes; with daemonSet to one for daemonset/base.
func convertInputs(inputs []convert.Input, o convert.Options, daemonSet bool) (*convert.Result, error) {
	result, err := convert.Files(inputs, o)
	if err != nil {
		return nil, fmt.Errorf("converting: %w", err)
	}
	if daemonSet {
		if err := result.ForDaemonSet(); err != nil {
			return nil, err
		}
	}
	if c := &result.Config.Listen; slices.Contains(c.Addresses, o.OldServer.Addr()) && c.Port == o.OldServer.Port() {
		return nil, &hint.Error{
			Err:  fmt.Errorf("converting: the old server %s: the agent answers at this address", o.OldServer),
			Hint: "give another address with --old-server, such as that of the DNS Service, which the agent itself may ask in each mode",
		}
	}
	return result, nil
}

// clusterTimeout bounds the requests of readCluster.
const clusterTimeout = 30 * time.Second

// readCluster reads the ConfigMaps of the cluster's DNS, and finds its Service.
func readCluster(ctx context.Context, kubeconfig string, o *convert.Options) (inputs []convert.Input, err error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	client, err := watch.NewClient(kubeconfigFile(kubeconfig), "node-cache-convert/"+version)
	if err == nil {
		inputs, err = configMaps(ctx, client)
	}
	if err == nil {
		o.Service, err = dnsService(ctx, client)
	}
	if err != nil {
		return nil, &hint.Error{
			Err:  fmt.Errorf("reading the cluster: %w", err),
			Hint: "check --kubeconfig, and permit to get configmaps and to list services in kube-system; or give files: kubectl -n kube-system get configmap -o yaml",
		}
	}
	return inputs, nil
}

// configMaps reads the ConfigMaps of the server that pods ask first.
func configMaps(ctx context.Context, client *watch.Client) (inputs []convert.Input, err error) {
	found := map[string]convert.Input{}
	for _, name := range []string{"node-local-dns", "nodelocaldns", "coredns", "coredns-custom", "rke2-coredns-rke2-coredns", "kube-dns"} {
		var object corev1.ConfigMap
		err := client.Get().Namespace("kube-system").Resource("configmaps").Name(name).Do(ctx).Into(&object)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if len(object.Data) > 0 {
			text, _ := json.Marshal(map[string]any{"kind": "ConfigMap", "data": object.Data}) // strings cannot fail
			found[name] = convert.Input{Name: name, Text: text}
		}
	}
	for _, names := range [][]string{{"node-local-dns", "kube-dns"}, {"nodelocaldns", "kube-dns"}, {"coredns", "coredns-custom"}, {"rke2-coredns-rke2-coredns"}, {"kube-dns"}} {
		if _, isThere := found[names[0]]; !isThere {
			continue
		}
		for _, name := range names {
			if in, isThere := found[name]; isThere {
				inputs = append(inputs, in)
			}
		}
		return inputs, nil
	}
	return nil, errors.New("namespace kube-system has no ConfigMap of NodeLocal DNSCache, CoreDNS or kube-dns")
}

// dnsService returns the DNS Service; zero: there is none. NodeLocal DNSCache has a second Service for the same pods.
func dnsService(ctx context.Context, client *watch.Client) (name config.ServiceName, err error) {
	var services corev1.ServiceList
	err = client.Get().Namespace("kube-system").Resource("services").Param("labelSelector", "k8s-app=kube-dns").Do(ctx).Into(&services)
	for _, s := range services.Items {
		if s.Spec.ClusterIP != corev1.ClusterIPNone && s.Name != "kube-dns-upstream" {
			name = config.ServiceName{Namespace: "kube-system", Name: s.Name}
		}
	}
	return name, err
}

// kubeconfigFile returns the file that kubectl uses; empty: there is none.
func kubeconfigFile(given string) string {
	if file := cmp.Or(given, os.Getenv("KUBECONFIG")); file != "" {
		return file
	}
	file := os.ExpandEnv("$HOME/.kube/config")
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// readInputs reads files.
func readInputs(names []string, stdin io.Reader) (inputs []convert.Input, err error) {
	for _, name := range names {
		in, err := readInput(name, stdin)
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, in)
	}
	return inputs, nil
}

// readInput reads a file, or standard input for -.
func readInput(name string, stdin io.Reader) (in convert.Input, err error) {
	from := stdin
	in.Name = "standard input"
	if name != "-" {
		f, err := os.Open(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return in, &hint.Error{
				Err:  fmt.Errorf("reading the input: %w", err),
				Hint: "give a Corefile, the YAML of ConfigMaps, or - for standard input",
			}
		case err != nil:
			return in, fmt.Errorf("reading the input: %w", err)
		}
		defer func() { _ = f.Close() }() // cannot lose data: the file was only read
		from, in.Name = f, name
	}
	if in.Text, err = io.ReadAll(io.LimitReader(from, maxConverted)); err != nil {
		err = fmt.Errorf("reading the input: %w", err)
	}
	return in, err
}

// writeConverted writes the configuration to one stream, and the notes about it to the other; as JSON both to the first.
func writeConverted(result *convert.Result, output string, stdout, stderr io.Writer) error {
	text, err := result.YAML()
	if err != nil {
		return err
	}
	if output == "json" {
		err = cli.PrintJSON(stdout, map[string]any{"configuration": string(text), "notes": append([]convert.Note{}, result.Notes...)})
		if result.Lost() {
			err = errors.Join(err, cli.ExitError(exitLossy))
		}
		return err
	}
	for _, n := range result.Notes {
		kind := "no counterpart"
		switch {
		case n.Left:
			kind = "left"
		case n.Kept:
			kind = "differs"
		}
		_, _ = fmt.Fprintf(stderr, "%s (%s)\n", plain.Error(fmt.Sprint(n)), kind)
		if n.Hint != "" {
			_, _ = fmt.Fprintf(stderr, "  hint: %s\n", plain.Error(n.Hint))
		}
	}
	if _, err := stdout.Write(text); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	if result.Lost() {
		return cli.ExitError(exitLossy)
	}
	return nil
}
