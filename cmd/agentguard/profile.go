//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/agentguard/agentguard/internal/profile"
	"github.com/agentguard/agentguard/policy"
	"github.com/agentguard/agentguard/supervisor"
	"github.com/agentguard/agentguard/trace"
)

// maxProfile bounds a profile of the user's own, as a policy file.
const maxProfile = policy.MaxBytes

// profiles says where the caller's home and own profiles are: under sudo the
// invoking user's. All of it is read as the caller.
func profiles() (*profile.Places, error) {
	c, err := caller()
	if err != nil {
		return nil, err
	}
	home, config := c.Home(os.Getenv), os.Getenv("XDG_CONFIG_HOME")
	if c.Sudo {
		config = ""
	}
	if !filepath.IsAbs(config) && home != "" {
		config = filepath.Join(home, ".config")
	}
	p := &profile.Places{Home: home, ReadFile: readAs(c), ReadDir: readDirAs(c), Exists: existsAs(c)}
	if filepath.IsAbs(config) {
		p.Dir = filepath.Join(config, "agentguard", "profiles")
	}
	return p, nil
}

func readAs(c supervisor.Caller) func(string) ([]byte, error) {
	return func(name string) (b []byte, err error) {
		err = c.As(func() error {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			b, err = io.ReadAll(io.LimitReader(f, maxProfile+1))
			return err
		})
		return b, err
	}
}

func readDirAs(c supervisor.Caller) func(string) ([]string, error) {
	return func(name string) (names []string, err error) {
		err = c.As(func() error {
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			names, err = f.Readdirnames(-1)
			return err
		})
		return names, err
	}
}

func existsAs(c supervisor.Caller) func(string) bool {
	return func(name string) bool {
		return c.As(func() error { _, err := os.Stat(name); return err }) == nil
	}
}

// readProfiles reads the named profiles, fitted to the caller's home.
func readProfiles(names []string) ([]*policy.File, error) {
	if len(names) == 0 {
		return nil, nil
	}
	p, err := profiles()
	if err != nil {
		return nil, err
	}
	var files []*policy.File
	for _, name := range names {
		f, err := p.Find(name)
		if err != nil {
			return nil, &supervisor.Refusal{What: err.Error(), Remedy: "agentguard profile ls"}
		}
		file, err := policy.ParseFragment("profile "+name, p.Fit(f))
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

func newProfile() *cobra.Command {
	c := &cobra.Command{
		Use: "profile", Short: "List and show the policy fragments that exec --profile adds",
		Long: `A profile is a fragment of a policy for a toolchain or a use. exec --profile NAME adds
it before the policy files and flags; several may be named. ~ in it is your home
directory, and paths that are not there are left out. Your own profiles are
$XDG_CONFIG_HOME/agentguard/profiles/NAME.yaml (~/.config when it is not set); one takes
the place of a shipped one of that name.`,
	}
	c.AddCommand(newProfileLs(), newProfileShow())
	return c
}

func newProfileLs() *cobra.Command {
	c := &cobra.Command{
		Use: "ls", Short: "List profiles", Args: cobra.NoArgs,
		Long: "ls lists the shipped profiles and your own.\n\nExit status: 0 listed; 125 one cannot be read.", Example: "  agentguard profile ls",
	}
	asJSON := c.Flags().Bool("json", false, "one JSON object a line: name, from, about")
	c.RunE = func(*cobra.Command, []string) error {
		p, err := profiles()
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
		for _, name := range p.Names() {
			f, err := p.Find(name)
			if err != nil {
				return err
			}
			if *asJSON {
				err = jsonLine(map[string]string{"name": f.Name, "from": f.From, "about": f.About})
			} else {
				_, err = fmt.Fprintf(w, "%s\t%s\t%s\n", f.Name, trace.Line(f.From), trace.Line(f.About))
			}
			if err != nil {
				return err
			}
		}
		return w.Flush()
	}
	return c
}

func newProfileShow() *cobra.Command {
	c := &cobra.Command{
		Use: "show NAME", Short: "Print a profile, fitted to your home directory", Args: cobra.ExactArgs(1),
		Long:    "show prints the policy that the profile comes to here: lines that were taken out because\ntheir path is not there begin with #.\n\nExit status: 0 shown; 125 there is none.",
		Example: "  agentguard profile show go\n  agentguard profile show go --raw > ~/.config/agentguard/profiles/mine.yaml",
	}
	raw := c.Flags().Bool("raw", false, "as it is stored")
	asJSON := c.Flags().Bool("json", false, "one JSON object: name, from, about, text")
	c.RunE = func(_ *cobra.Command, args []string) error {
		p, err := profiles()
		if err != nil {
			return err
		}
		f, err := p.Find(args[0])
		if err != nil {
			return &supervisor.Refusal{What: err.Error(), Remedy: "agentguard profile ls"}
		}
		text := []byte(f.Text)
		if !*raw {
			text = p.Fit(f)
		}
		if *asJSON {
			return jsonLine(map[string]string{"name": f.Name, "from": f.From, "about": f.About, "text": string(text)})
		}
		_, err = os.Stdout.Write(text)
		return err
	}
	return c
}
