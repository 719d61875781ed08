/* One thread opens a file, another puts a different one at the descriptor before the call has ended. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static volatile int done;
static int decoy;

static void *replace(void *none)
{
	while (!done)
		dup2(decoy, 9);
	return none;
}

int main(void)
{
	pthread_t thread;
	int opened = 0;

	close(creat("secret", 0600));
	close(creat("decoy", 0600));
	decoy = open("decoy", O_RDONLY);
	for (int fd = 3; fd < 9; fd++)
		if (fd != decoy)
			dup2(decoy, fd);
	pthread_create(&thread, NULL, replace, NULL);
	opened = open("decoy", O_RDONLY) >= 0; /* once more, and no longer alone */
	for (int i = 0; i < 2000; i++) {
		int fd = open("secret", O_RDONLY);

		opened += fd >= 0;
		close(fd);
	}
	done = 1;
	printf("%d\n", opened);
	return 0;
}
