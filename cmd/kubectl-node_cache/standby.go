// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/hint"
)

// configKey is the key of the configuration in its ConfigMap.
const configKey = "node-cache.yaml"

// askAgain is the pause between two rounds that ask all agents whether they are in standby.
const askAgain = 500 * time.Millisecond

func offCommand(c *cluster) *cobra.Command {
	return standbyCommand(c, true, "off", "Have the fallback answer all pods, on every node",
		`Have the fallback, which is the cluster's DNS, answer all pods: sets standby: true in the
agents' ConfigMap, and waits until every agent has released its leases. Rules and pods
stay, and nodes that join meanwhile start in standby. Refused while an agent knows no
fallback. Where the configuration is part of the pods (docs/staged.md), it creates the
ConfigMap that their --standby is mounted from.`)
}

func onCommand(c *cluster) *cobra.Command {
	return standbyCommand(c, false, "on", "Have the agents answer again, on every node",
		`Have the agents answer again: removes standby from their ConfigMap, or the ConfigMap of
--standby, and waits until every agent holds its leases.`)
}

func standbyCommand(c *cluster, on bool, use, short, long string) *cobra.Command {
	timeout := 3 * time.Minute
	cmd := &cobra.Command{
		Use: use, Short: short,
		Long: long + `

With --config-map it takes two seconds, with a mounted file about a minute. You need to
get and update the ConfigMap, or to create and delete that of --standby, besides the
permissions of all commands.

Exit code 0: every agent did it; 1: one did not, or an error; 2: invalid command line.`,
		Args: cli.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.standby(cmd, on, timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", timeout, "give up waiting for the agents after `DURATION`")
	return cmd
}

// standby sets or removes standby, and waits until all agents follow.
func (c *cluster) standby(cmd *cobra.Command, on bool, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	set, err := c.daemonSet(ctx)
	if err != nil {
		return err
	}
	where, err := switchOf(set)
	if err != nil {
		return err
	}
	if on {
		if err := c.requireFallback(cmd); err != nil {
			return err
		}
	}
	if err := c.turn(ctx, where, on); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "configmap %s/%s: standby: %t\n", c.namespace, where.configMap, on); err != nil {
		return err
	}
	return c.awaitStandby(ctx, cmd, on)
}

// A switchPlace is where agents read whether they are in standby.
type switchPlace struct {
	configMap string
	key       string // the ConfigMap is only for this, and the key says true; empty: it is a key of the configuration
	standby   bool   // the configuration in the pods has standby too, which only a rollout changes
}

// switchOf returns where the agents of a DaemonSet read whether they are in standby: from their ConfigMap, or, if their configuration
// is part of their pods, from one that exists while they are.
func switchOf(set *appsv1.DaemonSet) (switchPlace, error) {
	pod := &set.Spec.Template.Spec
	at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == agentName })
	if at < 0 {
		return switchPlace{}, fmt.Errorf("the DaemonSet has no container %s", agentName)
	}
	agent := &pod.Containers[at]
	if file := flagValue(agent.Args, "--standby"); file != "" {
		return standbyMap(pod, agent, file, set.Spec.Template.Annotations[stagedAnnotation])
	}
	name, err := configMapOf(pod, agent)
	return switchPlace{configMap: name}, err
}

// stagedAnnotation holds the configuration of agents whose changes are staged.
const stagedAnnotation = "node-cache.io/config"

// standbyMap returns the ConfigMap that is mounted as the file of --standby. text is the configuration in the pods.
func standbyMap(pod *corev1.PodSpec, agent *corev1.Container, file, text string) (switchPlace, error) {
	keys, err := topKeys(text)
	if err != nil {
		return switchPlace{}, err
	}
	on, _ := keys["standby"].(bool)
	v := volumeAt(pod, agent, path.Dir(file))
	if v != nil && v.Projected != nil {
		for _, source := range v.Projected.Sources {
			m := source.ConfigMap
			if m == nil {
				continue
			}
			if i := slices.IndexFunc(m.Items, func(k corev1.KeyToPath) bool { return k.Path == path.Base(file) }); i >= 0 {
				return switchPlace{configMap: m.Name, key: m.Items[i].Key, standby: on}, nil
			}
		}
	}
	return switchPlace{}, &hint.Error{
		Err:  fmt.Errorf("no ConfigMap is mounted as %s, the file of --standby", cell(file)),
		Hint: "mount it as daemonset/staged does, or set standby: true in the configuration, which takes a rollout",
	}
}

// configMapOf returns the name of the ConfigMap that an agent reads, through the API or as a mounted folder.
func configMapOf(pod *corev1.PodSpec, agent *corev1.Container) (string, error) {
	if from := flagValue(agent.Args, "--config-map"); from != "" {
		_, name, _ := strings.Cut(from, "/")
		return name, nil
	}
	if v := volumeAt(pod, agent, path.Dir(flagValue(agent.Args, "--config"))); v != nil && v.ConfigMap != nil {
		return v.ConfigMap.Name, nil
	}
	return "", &hint.Error{
		Err: errors.New("the agents read their configuration from no ConfigMap"), Hint: "set standby: true where they read it",
	}
}

// volumeAt returns the volume that a container has at a folder, nil if it has none there.
func volumeAt(pod *corev1.PodSpec, c *corev1.Container, folder string) *corev1.Volume {
	for _, mount := range c.VolumeMounts {
		for i := range pod.Volumes {
			if v := &pod.Volumes[i]; mount.MountPath == folder && v.Name == mount.Name {
				return v
			}
		}
	}
	return nil
}

// flagValue returns the value of a flag, empty if it is not there.
func flagValue(args []string, name string) string {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, name+"="); ok {
			return value
		}
		if arg == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// requireFallback fails if an agent knows no fallback, or if all find theirs broken. Where only some do, it warns: in an incident a dead
// server of several, or one bad node, must not keep the others from stepping aside. An agent that does not answer needs no fallback: that
// answers already.
func (c *cluster) requireFallback(cmd *cobra.Command) error {
	nodes, _, err := c.nodes(cmd.Context())
	if err != nil {
		return err
	}
	rows, err := statuses(c, cmd, nodes)
	if err != nil {
		return err
	}
	var without, broken []string
	why, answered := "", 0
	for _, r := range rows {
		i := &r.summary.Node.Intercept
		if r.Error != "" {
			continue
		}
		answered++
		if (i.Mode != "transparent" || i.From != "") && len(i.Fallback) == 0 {
			without = append(without, r.Node)
			continue
		}
		for _, lease := range i.Leases {
			if lease.Fallback == "broken" {
				broken, why = append(broken, r.Node), cmp.Or(why, lease.FallbackWhy)
				break
			}
		}
	}
	const most = 5
	switch {
	case len(without) > 0:
		return &hint.Error{
			Err: fmt.Errorf("%d agents know no fallback, so their pods would have no DNS: %s",
				len(without), cell(strings.Join(without[:min(len(without), most)], ", "))),
			Hint: "check that the cluster DNS has ready pods, or set intercept.fallback; nothing was changed",
		}
	case len(broken) > 0:
		found := fmt.Errorf("%d of %d agents report a broken fallback, so queries of their pods fail, or some of them: %s: %s",
			len(broken), answered, cell(strings.Join(broken[:min(len(broken), most)], ", ")), cell(why))
		if len(broken) == answered {
			return &hint.Error{Err: found, Hint: "check these servers; `standby: true` in the configuration overrides this check; nothing was changed"}
		}
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "node-cache: %v\n", found)
	}
	return err
}

// turn sets or removes standby at its place.
func (c *cluster) turn(ctx context.Context, where switchPlace, on bool) error {
	maps := c.client.CoreV1().ConfigMaps(c.namespace)
	switch {
	case where.key == "":
		return c.setStandby(ctx, where.configMap, on)
	case !on && where.standby:
		return &hint.Error{
			Err: errors.New("the configuration in the agents' pods has standby: true"), Hint: "remove it there; that takes a rollout",
		}
	case !on:
		err := maps.Delete(ctx, where.configMap, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return c.standbyMapError(where.configMap, err)
	}
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: where.configMap, Labels: map[string]string{"app.kubernetes.io/name": agentName}},
		Data:       map[string]string{where.key: "true"},
	}
	_, err := maps.Create(ctx, m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	}
	return c.standbyMapError(where.configMap, err)
}

// standbyMapError adds a hint to an error of the API server about the ConfigMap that exists for standby; nil: there is none.
func (c *cluster) standbyMapError(name string, err error) error {
	if err == nil {
		return nil
	}
	advice := "check that the API server is reachable: `kubectl version`"
	if isDenied(err) {
		advice = "you need to create, update and delete the ConfigMap " + name + " in the namespace " + c.namespace
	}
	return &hint.Error{Err: fmt.Errorf("changing standby: %w", err), Hint: advice}
}

// setStandby changes the configuration in the ConfigMap of that name.
func (c *cluster) setStandby(ctx context.Context, name string, on bool) error {
	maps := c.client.CoreV1().ConfigMaps(c.namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return c.configMapError(name, err)
		}
		text, err := withStandby(m.Data[configKey], on)
		if err != nil {
			return fmt.Errorf("configmap %s/%s: %w", c.namespace, name, err)
		}
		if text == m.Data[configKey] {
			return nil
		}
		m.Data[configKey] = text
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return err // try again
		}
		return c.configMapError(name, err)
	})
}

// configMapError adds a hint to an error of the API server about the ConfigMap; nil: there is none.
func (c *cluster) configMapError(name string, err error) error {
	if err == nil {
		return nil
	}
	advice := "check that the API server is reachable: `kubectl version`"
	switch {
	case apierrors.IsNotFound(err):
		advice = "the agents run on their last good configuration, or on the defaults: create it"
	case isDenied(err):
		advice = "you need to get and update the ConfigMap " + name + " in the namespace " + c.namespace
	}
	return &hint.Error{Err: fmt.Errorf("changing the configuration: %w", err), Hint: advice}
}

// standbyLine is the line that off adds, and on removes.
const standbyLine = "standby: true # kubectl node-cache off\n"

var (
	standbyKey = regexp.MustCompile(`(?m)^standby:.*(\n|\z)`)
	// preamble is what may come before the first key: comments, blank lines, directives, and the begin of the document.
	preamble = regexp.MustCompile(`\A([ \t]*(#.*)?\n|%.*\n|---[ \t]*(#.*)?\n)*`)
)

var errByHand = &hint.Error{
	Err: errors.New("the configuration has a form that this command cannot change"), Hint: "set standby in it: kubectl edit configmap",
}

// withStandby returns a configuration with standby on or off. All other lines, comments too, stay as they are.
func withStandby(text string, on bool) (string, error) {
	was, err := topKeys(text)
	if err != nil {
		return "", err
	}
	if strings.Contains(text[len(preamble.FindString(text)):], "\n---") {
		return "", errByHand // yaml reads the first of several documents only
	}
	changed := text
	switch found := standbyKey.FindString(text); {
	case found == standbyLine:
		changed = strings.Replace(text, standbyLine, "", 1)
	case found != "":
		changed = standbyKey.ReplaceAllLiteralString(text, "standby: false\n")
	}
	if on {
		changed = standbyKey.ReplaceAllLiteralString(text, "")
		at := len(preamble.FindString(changed))
		changed = changed[:at] + standbyLine + changed[at:]
	}
	is, err := topKeys(changed)
	if err != nil {
		return "", errByHand
	}
	if got, _ := is["standby"].(bool); got != on {
		return "", errByHand
	}
	delete(was, "standby")
	delete(is, "standby")
	if !reflect.DeepEqual(was, is) {
		return "", errByHand
	}
	return changed, nil
}

// topKeys reads a configuration.
func topKeys(text string) (map[string]any, error) {
	keys := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &keys); err != nil { // strict: the agents refuse a key that is there twice
		return nil, &hint.Error{Err: fmt.Errorf("reading the key %s: %w", configKey, err), Hint: "`node-cache check` names what is wrong"}
	}
	return keys, nil
}

// awaitStandby waits until all agents are in standby, or none is.
func (c *cluster) awaitStandby(ctx context.Context, cmd *cobra.Command, on bool) error {
	for {
		nodes, missing, err := c.nodes(ctx)
		if err != nil {
			return err
		}
		rows, err := statuses(c, cmd, nodes) //nolint:contextcheck // each request has a timeout of its own
		if err != nil {
			return err
		}
		done := 0
		for i, r := range rows {
			switch {
			case nodes[i].err != nil:
			case r.summary.follows(on):
				done++
			default:
				nodes[i].err = fmt.Errorf("has not followed: %s", r.summary.State)
			}
		}
		if done < len(nodes) && ctx.Err() == nil {
			select {
			case <-time.After(askAgain):
				continue
			case <-ctx.Done():
			}
		}
		what := map[bool]string{true: "are in standby: the fallback answers", false: "answer"}[on]
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d of %d agents %s\n", done, len(nodes)+missing, what)
		return errors.Join(err, failures(cmd.ErrOrStderr(), nodes, missing))
	}
}

// follows reports whether the agent is in standby, or has left it and holds all its leases.
func (s *summary) follows(on bool) bool {
	i := &s.Node.Intercept
	if on {
		return i.Standby
	}
	for _, lease := range i.Leases {
		if !lease.Held {
			return false
		}
	}
	return !i.Standby && len(i.Leases) > 0
}
