// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/source"
)

// sourceFlags say where the configuration comes from.
type sourceFlags struct {
	file, configMap, kubeconfig, kubeDNS, lastGood string
}

// add adds the flags to the command of an agent or a resolver.
func (f *sourceFlags) add(cmd *cobra.Command) {
	flags, who := cmd.Flags(), cmd.Name()
	flags.StringVar(&f.file, "config", "", "configuration `FILE`, watched while the "+who+" runs")
	flags.StringVar(&f.configMap, "config-map", "", "ConfigMap `NAMESPACE/NAME` with the configuration in its key "+source.Key+", watched through the API instead of a file")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` for --config-map; default: the pod's service account")
	flags.StringVar(&f.kubeDNS, "kube-dns", "", "mounted kube-dns ConfigMap; `FOLDER` is watched, its stub domains and nameservers replace those of the configuration")
	flags.StringVar(&f.lastGood, "last-good", "", "save the last applied configuration in `FOLDER`, and start with it if there is no valid one")
}

// given reports whether a flag names a configuration.
func (f *sourceFlags) given() bool { return f.file != "" || f.configMap != "" }

// options sets the options from the flags and the pod's environment.
func (f *sourceFlags) options(o *agent.Options) error {
	switch {
	case f.file != "" && f.configMap != "":
		return &usageError{errors.New("--config and --config-map exclude each other: the configuration is in one place")}
	case f.kubeconfig != "" && f.configMap == "":
		return &usageError{errors.New("--kubeconfig is for --config-map, which is missing; the configuration has cluster.kubeconfig for the cluster's names")}
	case f.kubeDNS != "" && !f.given():
		return &usageError{errors.New("--kube-dns is laid over a configuration: --config or --config-map is missing")}
	case f.lastGood != "" && !f.given():
		return &usageError{errors.New("--last-good is for a configuration that may go bad: --config or --config-map is missing")}
	}
	o.File = f.file
	o.Source = agent.Source{
		Kubeconfig: f.kubeconfig, KubeDNS: f.kubeDNS, LastGood: f.lastGood,
		Pod: source.Pod{
			Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME"), UID: os.Getenv("POD_UID"),
			Node: os.Getenv("NODE_NAME"),
		},
	}
	if f.configMap == "" {
		return nil
	}
	object, err := source.ParseObject(f.configMap)
	if err != nil {
		return &usageError{fmt.Errorf("--config-map: %w", err)}
	}
	o.Source.ConfigMap = object
	return nil
}

// unlessEnded returns err, or nil if the program was stopped while it waited for its configuration or its
// sockets.
func unlessEnded(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
